//! Files whose form others define: the Kubernetes base, the pods of Spark and the workflows, as their own schemas judge them.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::paths::Paths;
use xtask::process::output;
use xtask::setup::validators;

/// Versions of Kubernetes whose schemas judge the base.
const KUBERNETES: [&str; 2] = ["1.30.0", "1.37.0"];

/// A YAML file as JSON, read by Python's parser.
pub(crate) fn yaml(paths: &Paths, file: &Path) -> Result<Value> {
    let convert = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let python = validators::programs(paths).join("python");
    let text = output(Command::new(python).args(["-c", convert]).arg(file))?;
    Ok(serde_json::from_str(&text)?)
}

fn base() -> Result<(Paths, PathBuf)> {
    let paths = Paths::find()?;
    validators::validators(&paths)?;
    let base = paths.root.join("packaging/kubernetes/base");
    Ok((paths, base))
}

/// Judges resources, with unknown fields as errors.
fn judge(paths: &Paths, version: &str, file: &Path) -> Result<std::process::Output> {
    Command::new(validators::programs(paths).join("kubernetes-validate"))
        .args(["--strict", "-k", version])
        .arg(file)
        .output()
        .context("kubernetes-validate")
}

fn resources(paths: &Paths, base: &Path) -> Result<Vec<PathBuf>> {
    let kustomization = yaml(paths, &base.join("kustomization.yaml"))?;
    let listed = kustomization["resources"].as_array().context("resources")?;
    let names: BTreeSet<&str> = listed.iter().filter_map(Value::as_str).collect();
    let there: BTreeSet<String> = fs::read_dir(base)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml")
        .collect();
    ensure!(
        names == there.iter().map(String::as_str).collect(),
        "listed {names:?}, there {there:?}"
    );
    Ok(names.into_iter().map(|name| base.join(name)).collect())
}

/// Each version of Kubernetes takes the file.
fn takes(paths: &Paths, versions: &[&str], file: &Path) -> Result<()> {
    for version in versions {
        let judged = judge(paths, version, file)?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&judged.stderr),
            String::from_utf8_lossy(&judged.stdout)
        );
        ensure!(
            judged.status.success() && said.contains("passed"),
            "{} for Kubernetes {version}: {said}",
            file.display()
        );
    }
    Ok(())
}

/// The judge refuses the file with a misspelt field.
fn refuses(paths: &Paths, file: &Path, field: &str, misspelt: &str) -> Result<()> {
    let text = fs::read_to_string(file)?;
    ensure!(text.contains(field), "{} has no {field}", file.display());
    let wrong = tempfile::NamedTempFile::with_suffix(".yaml")?;
    fs::write(&wrong, text.replace(field, misspelt))?;
    let judged = judge(paths, KUBERNETES[1], wrong.path())?;
    ensure!(!judged.status.success(), "a misspelt field is taken");
    Ok(())
}

#[test]
fn kubernetes_takes_the_base() -> Result<()> {
    let (paths, base) = base()?;
    for file in resources(&paths, &base)? {
        takes(&paths, &KUBERNETES, &file)?;
    }
    refuses(&paths, &base.join("daemonset.yaml"), "hostPID:", "hostPid:")
}

#[test]
fn kubernetes_takes_the_templates_of_sparks_pods_whose_jar_is_where_the_page_says() -> Result<()> {
    let (paths, base) = base()?;
    let image = format!("smtt:{}", xtask::dist::VERSION);
    let page = fs::read_to_string(paths.root.join("docs/KUBERNETES.md"))?;
    let folder = base.with_file_name("pods");
    let mut seen = 0;
    for entry in fs::read_dir(&folder)? {
        let file = entry?.path();
        let pod = template(&paths, &file)?;
        // The schema asks for an image, which Spark adds.
        let whole = tempfile::NamedTempFile::with_suffix(".yaml")?;
        let mut complete = pod.clone();
        complete["spec"]["containers"][0]["image"] = "spark".into();
        complete["metadata"]["name"] = "driver".into();
        fs::write(&whole, serde_json::to_string(&complete)?)?;
        // Volumes of images are in Kubernetes since 1.31.
        let volume = &pod["spec"]["volumes"][0];
        let of_image = volume["image"].is_object();
        takes(&paths, &KUBERNETES[usize::from(of_image)..], whole.path())?;
        refuses(&paths, whole.path(), "\"mountPath\":", "\"mountpath\":")?;
        let mount = &pod["spec"]["containers"][0]["volumeMounts"][0];
        ensure!(
            mount["name"] == volume["name"] && mount["mountPath"] == "/opt/smtt",
            "{mount}"
        );
        let first = &pod["spec"]["initContainers"][0];
        if of_image {
            ensure!(volume["image"]["reference"] == image.as_str(), "{volume}");
            ensure!(page.contains("the folder is `/opt/smtt/usr/lib/smtt`"));
        } else {
            ensure!(
                first["image"] == image.as_str()
                    && first["volumeMounts"][0]["mountPath"] == "/opt/smtt"
                    && first["command"][2] == "/opt/smtt/",
                "{first}"
            );
            ensure!(page.contains("extraClassPath=/opt/smtt/smtt-marker.jar "));
        }
        let name = file.file_name().and_then(|name| name.to_str());
        ensure!(page.contains(&format!("pods/{})", name.context("a name")?)));
        seen += 1;
    }
    ensure!(seen == 2, "{seen} templates");
    Ok(())
}

/// A template of Spark's pods.
fn template(paths: &Paths, file: &Path) -> Result<Value> {
    let pod = yaml(paths, file)?;
    ensure!(
        pod["kind"] == "Pod" && pod["spec"]["containers"].as_array().map(Vec::len) == Some(1),
        "{}: {pod}",
        file.display()
    );
    Ok(pod)
}

#[test]
fn the_daemon_of_the_base_has_what_the_unit_gives() -> Result<()> {
    let (paths, base) = base()?;
    let set = yaml(&paths, &base.join("daemonset.yaml"))?;
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    ensure!(pod["hostPID"] == true, "process ids of the node");
    let security = &container["securityContext"];
    let added: BTreeSet<String> = security["capabilities"]["add"]
        .as_array()
        .context("capabilities")?
        .iter()
        .filter_map(|name| Some(format!("CAP_{}", name.as_str()?)))
        .collect();
    let unit = fs::read_to_string(paths.root.join("config/smtt.service"))?;
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let given: BTreeSet<String> = line
        .context("the unit's capabilities")?
        .split(' ')
        .map(str::to_owned)
        .collect();
    ensure!(added == given, "{added:?}, the unit has {given:?}");
    ensure!(security["capabilities"]["drop"][0] == "ALL");
    ensure!(container["resources"]["limits"]["memory"] == "256Mi");
    ensure!(unit.contains("\nMemoryMax=256M\n"));

    // Names that must agree: image, configuration, port, labels.
    let kustomization = yaml(&paths, &base.join("kustomization.yaml"))?;
    ensure!(kustomization["images"][0]["name"] == container["image"]);
    ensure!(kustomization["images"][0]["newTag"] == xtask::dist::VERSION);
    let config = &kustomization["configMapGenerator"][0];
    let volumes = pod["volumes"].as_array().context("volumes")?;
    let volume = volumes.iter().find(|volume| volume["name"] == "config");
    ensure!(volume.context("config")?["configMap"]["name"] == config["name"]);
    let mounted: BTreeSet<&str> = container["volumeMounts"]
        .as_array()
        .context("mounts")?
        .iter()
        .filter_map(|mount| mount["name"].as_str())
        .collect();
    let defined: BTreeSet<&str> = volumes
        .iter()
        .filter_map(|volume| volume["name"].as_str())
        .collect();
    ensure!(mounted == defined, "{mounted:?} {defined:?}");
    let service = yaml(&paths, &base.join("service.yaml"))?;
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    ensure!(
        &service["spec"]["selector"] == labels && &set["spec"]["selector"]["matchLabels"] == labels
    );
    ensure!(service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"]);
    ensure!(service["spec"]["publishNotReadyAddresses"] == true);
    let scrape = fs::read_to_string(
        paths
            .root
            .join("packaging/prometheus/scrape/kubernetes.yml"),
    )?;
    ensure!(scrape.contains("smtt.smtt.svc.cluster.local") && scrape.contains("port: 10871"));

    // The daemon itself takes the configuration, and listens where the probes ask.
    let file = base.join(config["files"][0].as_str().context("a file")?);
    let said = output(
        Command::new(paths.target.join("debug/smtt-daemon"))
            .args(["--check", "--config"])
            .arg(&file),
    )?;
    ensure!(said.contains("configuration is good"), "{said}");
    ensure!(fs::read_to_string(&file)?.contains("\"0.0.0.0:10871\""));
    Ok(())
}

/// Puts a value where an `add` of a JSON patch says.
fn add(object: &mut Value, operation: &Value) -> Result<()> {
    ensure!(operation["op"] == "add", "{operation}");
    let path = operation["path"].as_str().context("a path")?;
    let (parent, last) = path.rsplit_once('/').context("a place")?;
    let place = object.pointer_mut(parent);
    let place = place.with_context(|| format!("the base has no {parent}"))?;
    match (last, place) {
        ("-", Value::Array(list)) => list.push(operation["value"].clone()),
        (name, Value::Object(fields)) => {
            fields.insert(name.to_owned(), operation["value"].clone());
        }
        (name, _) => anyhow::bail!("{parent} takes no {name}"),
    }
    Ok(())
}

/// A kustomization's patch of the DaemonSet, applied to the base's.
fn patched(paths: &Paths, base: &Path, kustomization: &Value) -> Result<Value> {
    let patch = kustomization["patches"][0]["patch"].as_str();
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    fs::write(&file, patch.context("a patch")?)?;
    let mut set = yaml(paths, &base.join("daemonset.yaml"))?;
    let operations = yaml(paths, file.path())?;
    for operation in operations.as_array().context("operations")? {
        add(&mut set, operation)?;
    }
    let target = &kustomization["patches"][0]["target"];
    ensure!(
        target["kind"] == set["kind"] && target["name"] == set["metadata"]["name"],
        "{target}"
    );
    let file = tempfile::NamedTempFile::with_suffix(".yaml")?;
    fs::write(&file, serde_json::to_string(&set)?)?;
    for version in KUBERNETES {
        let judged = judge(paths, version, file.path())?;
        let said = String::from_utf8_lossy(&judged.stderr);
        ensure!(judged.status.success(), "for Kubernetes {version}: {said}");
    }
    Ok(set)
}

/// The overlay for older kernels adds the capability that the drop-in of the unit adds, and nothing else.
#[test]
fn the_overlay_for_linux_before_6_6_adds_what_the_drop_in_adds() -> Result<()> {
    let (paths, base) = base()?;
    let overlay = paths.root.join("packaging/kubernetes/linux-before-6.6");
    let kustomization = yaml(&paths, &overlay.join("kustomization.yaml"))?;
    ensure!(kustomization["kind"] == "Kustomization");
    let resources = kustomization["resources"].as_array().context("resources")?;
    let [resource] = &resources[..] else {
        anyhow::bail!("{resources:?}");
    };
    let resource = resource.as_str().context("a folder")?;
    ensure!(overlay.join(resource).canonicalize()? == base.canonicalize()?);

    let mut set = patched(&paths, &base, &kustomization)?;
    let added = set
        .pointer_mut("/spec/template/spec/containers/0/securityContext/capabilities/add")
        .and_then(Value::as_array_mut)
        .context("capabilities")?
        .pop();
    let added = added.as_ref().and_then(Value::as_str).context("a name")?;
    let drop_in = fs::read_to_string(paths.root.join("config/smtt-sys-admin.conf"))?;
    for key in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        let line = format!("\n{key}=CAP_{added}\n");
        ensure!(drop_in.contains(&line), "no {line:?} in {drop_in}");
    }
    ensure!(
        set == yaml(&paths, &base.join("daemonset.yaml"))?,
        "more is changed"
    );
    Ok(())
}

/// Every alert and recording rule has a case that promtool runs (`tests/tests/prometheus`).
#[test]
fn every_rule_has_a_case() -> Result<()> {
    let (paths, _) = base()?;
    let folder = paths.root.join("packaging/prometheus");
    let cases = yaml(&paths, &folder.join("tests.yml"))?;
    let cases = cases["tests"].as_array().context("no cases")?;
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for case in cases {
        let all = |key: &str| case[key].as_array().into_iter().flatten();
        let alerts = all("alert_rule_test").filter(|test| {
            // One that only stays away shows nothing of its text.
            test["exp_alerts"]
                .as_array()
                .is_some_and(|alerts| !alerts.is_empty())
        });
        known.extend(alerts.filter_map(|test| test["alertname"].as_str()));
        known.extend(all("promql_expr_test").filter_map(|test| test["expr"].as_str()));
    }
    let mut rules = 0;
    for file in ["alerts.yml", "recording.yml"] {
        let file = yaml(&paths, &folder.join(file))?;
        let groups = file["groups"].as_array().context("no groups")?;
        for rule in groups
            .iter()
            .filter_map(|group| group["rules"].as_array())
            .flatten()
        {
            let name = rule["alert"].as_str().or_else(|| rule["record"].as_str());
            let name = name.context("a rule without a name")?;
            ensure!(known.contains(name), "{name} has no case in tests.yml");
            rules += 1;
        }
    }
    ensure!(rules >= 20, "{rules} rules");
    Ok(())
}

/// The component with TLS changes what is there; its probes ask as the port answers, and the daemon takes its files.
#[test]
fn the_component_with_tls_has_probes_and_modes_that_the_daemon_takes() -> Result<()> {
    let (paths, base) = base()?;
    let component = paths.root.join("packaging/kubernetes/tls");
    let kustomization = yaml(&paths, &component.join("kustomization.yaml"))?;
    ensure!(kustomization["kind"] == "Component");
    let generated = yaml(&paths, &base.join("kustomization.yaml"))?;
    let generated = &generated["configMapGenerator"][0];
    let config = &kustomization["configMapGenerator"][0];
    ensure!(config["behavior"] == "replace");
    ensure!(config["name"] == generated["name"] && config["files"] == generated["files"]);

    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    let set = patched(&paths, &base, &kustomization)?;
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for probe in ["startupProbe", "livenessProbe"] {
        ensure!(container[probe]["httpGet"]["scheme"] == "HTTPS", "{probe}");
    }
    let volumes = pod["volumes"].as_array().context("volumes")?;
    let web = volumes.iter().find(|volume| volume["name"] == "web");
    let secret = &web.context("no volume of the secret")?["secret"];
    ensure!(secret["defaultMode"] == 0o400, "{secret}");
    let mounts = container["volumeMounts"].as_array().context("mounts")?;
    let mounted = mounts.iter().find(|mount| mount["name"] == "web");
    let mounted = mounted.context("the secret is mounted nowhere")?["mountPath"].clone();

    // The files as the pod has them.
    let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=smtt \
                     -keyout tls.key -out tls.crt";
    output(
        Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(folder.path()),
    )?;
    fs::write(
        file("web.yml"),
        "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\nbasic_auth_users:\n  \
         prometheus: $2b$04$abcdefghijklmnopqrstuusnI7L1HSYPtZYMtMSGhPX9ThORE6qP2\n",
    )?;
    let text = fs::read_to_string(component.join("smtt.toml"))?;
    let mounted = mounted.as_str().context("a path")?;
    ensure!(text.contains(&format!("\"{mounted}/web.yml\"")), "{text}");
    let here = text.replace(mounted, &folder.path().display().to_string());
    fs::write(file("smtt.toml"), here)?;
    let check = |mode: u32| {
        for name in ["web.yml", "tls.crt", "tls.key"] {
            fs::set_permissions(file(name), Permissions::from_mode(mode))?;
        }
        Command::new(paths.target.join("debug/smtt-daemon"))
            .args(["--check", "--config"])
            .arg(file("smtt.toml"))
            .output()
    };
    let taken = check(0o400)?;
    ensure!(taken.status.success(), "{taken:?}");
    // What a Secret has by default.
    let refused = check(0o644)?;
    ensure!(refused.status.code() == Some(78), "{refused:?}");
    Ok(())
}

/// `smtt-ctl --cluster kubernetes:` has the rights that it uses and no other; the daemon has none.
#[test]
fn the_client_of_the_base_may_list_endpoints_and_nothing_else() -> Result<()> {
    let (paths, base) = base()?;
    let of = |name: &str| yaml(&paths, &base.join(name));
    let (role, binding) = (of("client-role.yaml")?, of("client-rolebinding.yaml")?);
    let account = of("client-serviceaccount.yaml")?;
    let rights = json!([{
        "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"],
    }]);
    ensure!(role["rules"] == rights, "{}", role["rules"]);
    ensure!(role["kind"] == "Role", "rights in one namespace");
    // It is all that the client asks for.
    let client = paths.root.join("smtt-ctl/src/cluster/kubernetes.rs");
    let client = fs::read_to_string(client)?;
    let asked: Vec<&str> = client
        .split("\"/api")
        .skip(1)
        .filter_map(|rest| rest.split_once('?').map(|(path, _)| path))
        .collect();
    ensure!(
        asked == ["s/discovery.k8s.io/v1/namespaces/{}/endpointslices"],
        "{asked:?}"
    );

    let metadata = |of: &Value| {
        [
            of["metadata"]["name"].clone(),
            of["metadata"]["namespace"].clone(),
        ]
    };
    let namespace = yaml(&paths, &base.join("kustomization.yaml"))?["namespace"].clone();
    for object in [&role, &binding, &account] {
        ensure!(
            metadata(object) == [json!("smtt-ctl"), namespace.clone()],
            "{object}"
        );
    }
    let subject = json!({"kind": "ServiceAccount", "name": "smtt-ctl", "namespace": namespace});
    ensure!(binding["subjects"] == json!([subject]), "{binding}");
    ensure!(binding["roleRef"]["kind"] == role["kind"] && binding["roleRef"]["name"] == "smtt-ctl");

    // The daemon's account is another one, without a token.
    let set = of("daemonset.yaml")?;
    let pod = &set["spec"]["template"]["spec"];
    ensure!(pod["serviceAccountName"] == "smtt" && pod["automountServiceAccountToken"] == false);
    ensure!(of("serviceaccount.yaml")?["automountServiceAccountToken"] == false);
    // The pod of the document is one that the network policy lets in.
    let label =
        of("networkpolicy.yaml")?["spec"]["ingress"][0]["from"][1]["podSelector"]["matchLabels"]
            .clone();
    let name = label["app.kubernetes.io/name"]
        .as_str()
        .context("a label")?;
    let document = fs::read_to_string(paths.root.join("docs/KUBERNETES.md"))?;
    ensure!(document.contains(&format!("--labels=app.kubernetes.io/name={name} ")));
    ensure!(document.contains("'{\"spec\":{\"serviceAccountName\":\"smtt-ctl\"}}'"));
    Ok(())
}

/// Judges a workflow.
fn judge_workflow(paths: &Paths, file: &Path) -> Result<std::process::Output> {
    let program = validators::programs(paths).join("check-jsonschema");
    let arguments = ["--builtin-schema", "vendor.github-workflows"];
    Command::new(program)
        .args(arguments)
        .arg(file)
        .output()
        .context("check-jsonschema")
}

/// The last step of a workflow's only job.
fn last_step(paths: &Paths, workflow: &Path, job: &str) -> Result<Value> {
    let steps = yaml(paths, workflow)?["jobs"][job]["steps"].clone();
    let steps = steps.as_array().context("steps")?;
    steps.last().cloned().context("no step")
}

#[test]
fn the_workflows_have_githubs_form_and_run_all_stages() -> Result<()> {
    let (paths, _) = base()?;
    let folder = paths.root.join(".github/workflows");
    let mut there = BTreeSet::new();
    for entry in fs::read_dir(&folder)? {
        let workflow = entry?.path();
        let judged = judge_workflow(&paths, &workflow)?;
        ensure!(
            judged.status.success(),
            "{}: {}",
            workflow.display(),
            String::from_utf8_lossy(&judged.stdout)
        );
        let wrong = tempfile::NamedTempFile::with_suffix(".yml")?;
        let text = fs::read_to_string(&workflow)?.replace("runs-on:", "run-on:");
        fs::write(&wrong, text)?;
        ensure!(
            !judge_workflow(&paths, wrong.path())?.status.success(),
            "a misspelt key is taken"
        );
        there.extend(workflow.file_stem().map(|stem| stem.to_os_string()));
    }
    ensure!(there.len() == 2, "{there:?}");

    let tests = folder.join("tests.yml");
    let last = last_step(&paths, &tests, "tests")?;
    ensure!(last["run"] == "bash .ci/run", "{last}");

    let long = folder.join("long.yml");
    let last = last_step(&paths, &long, "long")?;
    ensure!(
        last["run"] == "cargo xtask test ${{ matrix.stage }} < /dev/null",
        "{last}"
    );
    let workflow = yaml(&paths, &long)?;
    let stages = workflow["jobs"]["long"]["strategy"]["matrix"]["stage"].clone();
    ensure!(
        stages == json!(xtask::stages::names_by_name_only()),
        "{stages}"
    );
    // YAML 1.1 reads the key `on` as true.
    let cron = workflow["true"]["schedule"][0]["cron"].as_str();
    ensure!(
        cron.is_some_and(|cron| cron.split(' ').count() == 5),
        "no schedule: {workflow}"
    );
    Ok(())
}
