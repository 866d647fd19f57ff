//! The image of `packaging/container/Containerfile`, made by Debian's buildah with the command of docs/KUBERNETES.md. The
//! base has the name of the file's first line, but is the small Debian of the tests' containers: no registry is asked.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use xtask::dist::VERSION;
use xtask::paths::Paths;
use xtask::process::output;
use xtask::setup::images::{self, Images};

use crate::forms::yaml;
use crate::worker;

const FILE: &str = "packaging/container/Containerfile";
const CONTEXT: &str = "target/packages";

/// The lines of the file, each with those that it goes on in.
fn instructions(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let whole = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    whole.lines().map(str::to_owned).collect()
}

fn argument<'a>(instructions: &'a [String], name: &str) -> Result<&'a str> {
    let found = instructions
        .iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.with_context(|| format!("no {name}"))
}

/// A folder as `target/packages`: with the tarball for this processor, and one for the other that nothing may unpack.
fn context(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let context = folder.join("packages");
    fs::create_dir(&context)?;
    let tarball = &worker()?.tarball;
    let name = tarball.file_name().context("a name")?;
    ensure!(name == format!("smtt-{VERSION}-linux-x86_64.tar.gz").as_str());
    fs::copy(tarball, context.join(name))?;
    let other = format!("smtt-{VERSION}-linux-aarch64.tar.gz");
    fs::write(context.join(other), "of another processor")?;
    Ok((context, tarball.clone()))
}

/// The arguments of the document's first command that builds, for this file and folder.
fn documented(paths: &Paths, file: &Path, context: &Path) -> Result<Vec<String>> {
    let page = fs::read_to_string(paths.root.join("docs/KUBERNETES.md"))?;
    let lines = page.lines();
    let command = lines
        .filter_map(|line| line.strip_prefix("podman build "))
        .next()
        .context("no command")?;
    ensure!(
        command == format!("-t REGISTRY/smtt:{VERSION} -f {FILE} {CONTEXT}"),
        "{command}"
    );
    let words = command.split(' ').map(|word| match word {
        FILE => file.display().to_string(),
        CONTEXT => context.display().to_string(),
        word => word.replace("REGISTRY/", ""),
    });
    Ok(words.collect())
}

fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn the_containerfile_makes_an_image_that_pods_can_use() -> Result<()> {
    let paths = Paths::find()?;
    images::step(&paths)?;
    let folder = tempfile::tempdir()?;
    let images = Images::new(&paths, folder.path())?;
    let file = paths.root.join(FILE);
    let text = fs::read_to_string(&file)?;
    let instructions = instructions(&text);
    images.bring_debian(argument(&instructions, "FROM")?)?;
    let (context, tarball) = context(folder.path())?;

    let built = images
        .command("build")
        .args(documented(&paths, &file, &context)?)
        .output()?;
    ensure!(built.status.success(), "{}", said(&built));
    // Its own check has run.
    ensure!(
        said(&built).contains("configuration is good"),
        "{}",
        said(&built)
    );
    let image = format!("smtt:{VERSION}");
    let words = starts_as_its_pod(&paths, &images, &image)?;

    let container = output(images.command("from").arg(&image))?;
    let container = container.trim();
    has_the_files(&images, container, &tarball)?;
    let run = |options: &[&str], command: &[String]| {
        let mut run = images.command("run");
        run.args(options).args([container, "--"]).args(command);
        run.output()
    };
    let run_words = |line: &str| run(&[], &line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    // The entry point reads the configuration, and refuses process ids that are not the node's: the base has hostPID.
    let alone = run(&[], &words)?;
    ensure!(
        !alone.status.success() && said(&alone).contains("hostPID: true"),
        "{}",
        said(&alone)
    );
    // As `kubectl exec`, `kubectl cp` and the pod of docs/KUBERNETES.md use the image.
    let doctor = run_words("smtt-ctl doctor")?;
    ensure!(
        said(&doctor).contains("/etc/smtt/smtt.toml is right"),
        "{}",
        said(&doctor)
    );
    for line in ["tar --version", "chmod --version", "sleep 0"] {
        let ran = run_words(line)?;
        ensure!(ran.status.success(), "{line}: {}", said(&ran));
    }
    gives_the_jar(&paths, folder.path(), &tarball, run)?;
    output(images.command("rm").arg(container))?;

    // A path that the tarball does not have ends the build.
    let wrong = folder.path().join("Containerfile");
    for (right, misspelt) in [
        (
            "/usr/bin/smtt-daemon --check",
            "/usr/sbin/smtt-daemon --check",
        ),
        ("smtt-${VERSION}-linux-*", "smtt_${VERSION}_linux_*"),
    ] {
        ensure!(text.contains(right), "{right}");
        fs::write(&wrong, text.replace(right, misspelt))?;
        let refused = images
            .command("build")
            .args(documented(&paths, &wrong, &context)?)
            .output()?;
        ensure!(!refused.status.success(), "{misspelt} builds an image");
    }
    Ok(())
}

/// What the image starts, as whom and with which port: as the DaemonSet has it. Returns the words of its command.
fn starts_as_its_pod(paths: &Paths, images: &Images<'_>, image: &str) -> Result<Vec<String>> {
    let text = output(images.command("inspect").args(["--type", "image", image]))?;
    let all: Value = serde_json::from_str(&text)?;
    let config = &all["OCIv1"]["config"];
    let base = paths.root.join("packaging/kubernetes/base");
    let set = yaml(paths, &base.join("daemonset.yaml"))?;
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    let user = format!("{}:{}", security["runAsUser"], security["runAsGroup"]);
    ensure!(config["User"] == user.as_str(), "{config}");
    let port = format!("{}/tcp", container["ports"][0]["containerPort"]);
    ensure!(config["ExposedPorts"] == json!({port: {}}), "{config}");
    // The pod has no command of its own, so the image's reads the file that the pod mounts.
    ensure!(container["command"].is_null() && container["args"].is_null());
    let mounts = container["volumeMounts"].as_array().context("mounts")?;
    let of_config = mounts.iter().find(|mount| mount["name"] == "config");
    let place = of_config.context("no configuration")?["mountPath"].as_str();
    let path = format!("{}/smtt.toml", place.context("a path")?);
    ensure!(config["Cmd"] == json!(["--config", path]), "{config}");
    let words = ["Entrypoint", "Cmd"].map(|key| config[key].as_array().cloned());
    let words = words.into_iter().flatten().flatten();
    let words = words.map(|word| word.as_str().map(str::to_owned));
    words.collect::<Option<_>>().context("words")
}

/// All files of the tarball are root's in the image, and nothing of the build is left.
fn has_the_files(images: &Images<'_>, container: &str, tarball: &Path) -> Result<()> {
    let root = output(images.command("mount").arg(container))?;
    let root = Path::new(root.trim());
    let listed = output(
        Command::new("tar")
            .args(["--strip-components=1", "--show-transformed-names", "-tzf"])
            .arg(tarball),
    )?;
    let mut files = 0;
    for name in listed.lines().filter(|name| !name.ends_with('/')) {
        let metadata = fs::symlink_metadata(root.join(name)).with_context(|| name.to_owned())?;
        ensure!(
            std::os::unix::fs::MetadataExt::uid(&metadata) == 0,
            "{name}"
        );
        files += 1;
    }
    ensure!(files > 25, "{files} files");
    ensure!(fs::read_dir(root.join("tmp"))?.next().is_none(), "/tmp");
    output(images.command("umount").arg(container))?;
    Ok(())
}

/// The init container of Spark's pods copies the jar, as its own user and without a capability; and the jar is where the
/// page says that a volume of the image has it.
fn gives_the_jar(
    paths: &Paths,
    folder: &Path,
    tarball: &Path,
    run: impl Fn(&[&str], &[String]) -> std::io::Result<Output>,
) -> Result<()> {
    let pods = paths.root.join("packaging/kubernetes/pods");
    let pod = yaml(paths, &pods.join("init-container.yaml"))?;
    let first = &pod["spec"]["initContainers"][0];
    let command = first["command"].as_array().context("a command")?;
    let command: Option<Vec<String>> = command
        .iter()
        .map(|word| word.as_str().map(str::to_owned))
        .collect();
    ensure!(first["securityContext"]["capabilities"]["drop"] == json!(["ALL"]));
    let user = first["securityContext"]["runAsUser"].to_string();
    let mount = first["volumeMounts"][0]["mountPath"].as_str();
    let mount = mount.context("a place")?;
    let shared = folder.join("shared");
    fs::create_dir(&shared)?;
    fs::set_permissions(&shared, Permissions::from_mode(0o777))?;
    let volume = format!("{}:{mount}", shared.display());
    let ran = run(
        &["--user", &user, "--cap-drop", "all", "--volume", &volume],
        &command.context("words")?,
    )?;
    ensure!(ran.status.success(), "{}", said(&ran));
    let jar = Command::new("tar")
        .arg("-xzOf")
        .arg(tarball)
        .arg(format!("smtt-{VERSION}/usr/lib/smtt/smtt-marker.jar"))
        .output()?;
    ensure!(jar.status.success() && jar.stdout.len() > 100_000);
    ensure!(fs::read(shared.join("smtt-marker.jar"))? == jar.stdout);
    Ok(())
}
