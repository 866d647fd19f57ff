//! The workers of a cluster: a list of hosts, Prometheus' file of targets, a name in DNS, or a service of Kubernetes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use smtt_model::sort::small::Gather as _;
use smtt_model::yaml;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::kubernetes;
use crate::Failure;
use crate::args::ClusterArgs;
use crate::ssh::Place;

/// Port of the daemon where the list names none.
const PORT: u16 = 10871;
/// Bytes of a list.
const FILE_MAX: u64 = 4 << 20;
/// Workers of a cluster.
const WORKERS_MAX: usize = 10_000;
/// Workers by ssh: each has a process here.
const SSH_MAX: usize = 64;

/// A worker of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// Name in tables: the host, with its port where two workers have the same host.
    pub name: String,
    /// Host to connect to: a name or an address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Name that the worker's certificate must have; `None` without TLS.
    pub certified: Option<String>,
    /// The machine whose socket ssh brings here, in place of host and port.
    pub ssh: Option<Place>,
}

impl Worker {
    /// A worker that is reached by ssh.
    fn by_ssh(place: Place) -> Self {
        Self {
            name: String::new(),
            host: place.text.clone(),
            port: 0,
            certified: None,
            ssh: Some(place),
        }
    }
}

/// Addresses of a name that are workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Those of the one family that the name has.
    One,
    /// Those of IPv4.
    V4,
    /// Those of IPv6.
    V6,
}

/// An entry of a file of targets.
#[derive(Deserialize)]
struct Targets {
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    labels: Labels,
}

#[derive(Default, Deserialize)]
struct Labels {
    #[serde(rename = "__scheme__")]
    scheme: Option<String>,
}

/// The workers of `--cluster` and `--host`.
///
/// # Errors
/// When the file or the name cannot be read, or names no worker.
pub async fn workers(args: &ClusterArgs) -> Result<Vec<Worker>, Failure> {
    let mut found = Vec::new();
    if let Some(spec) = &args.cluster {
        found = match spec.strip_prefix("kubernetes:") {
            Some(service) => kubernetes::workers(service, args)
                .await
                .map_err(|error| wrong(spec, &error))?,
            None => in_spec(spec, args.is_tls(), args.deadline).await?,
        };
        if found.is_empty() {
            return Err(wrong(spec, "it names no worker"));
        }
    }
    found.extend(args.host.iter().cloned().map(Worker::by_ssh));
    let named = named(found);
    let spec = args.cluster.as_deref().unwrap_or_default();
    if named.len() > WORKERS_MAX {
        let many = format!("it names more than {WORKERS_MAX} workers");
        return Err(wrong(spec, &many));
    }
    if named.iter().filter(|worker| worker.ssh.is_some()).count() > SSH_MAX {
        return Err(Failure::Question(format!(
            "more than {SSH_MAX} workers by ssh: query their ports with --cluster ([web] api)"
        )));
    }
    Ok(named)
}

/// The workers of a specification. `tls` holds where it names no scheme; a name is resolved within `deadline`.
async fn in_spec(spec: &str, tls: bool, deadline: Duration) -> Result<Vec<Worker>, Failure> {
    let name = [
        ("dns:", Family::One),
        ("dns4:", Family::V4),
        ("dns6:", Family::V6),
    ]
    .into_iter()
    .find_map(|(prefix, family)| Some((spec.strip_prefix(prefix)?, family)));
    match name {
        Some((name, family)) => resolved(spec, name, family, tls, deadline).await,
        None => listed(Path::new(spec), tls),
    }
}

fn wrong(spec: &str, message: &str) -> Failure {
    Failure::Question(format!("--cluster {spec}: {message}"))
}

/// The addresses of a name; certificates are of the name.
async fn resolved(
    spec: &str,
    name_and_port: &str,
    family: Family,
    tls: bool,
    deadline: Duration,
) -> Result<Vec<Worker>, Failure> {
    let (name, port) = name_and_port
        .rsplit_once(':')
        .and_then(|(name, port)| Some((name, port.parse().ok()?)))
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| {
            wrong(
                spec,
                "write dns:NAME:PORT, dns4:NAME:PORT or dns6:NAME:PORT",
            )
        })?;
    let addresses = timeout(deadline, lookup_host((name, port)))
        .await
        .map_err(|_| {
            wrong(
                spec,
                &format!("the name has no address within {deadline:?}"),
            )
        })?
        .map_err(|error| wrong(spec, &format!("the name has no address: {error}")))?;
    let addresses = of_family(addresses.map(|address| address.ip()).collect(), family)
        .map_err(|message| wrong(spec, message))?;
    let worker = |host: String| Worker {
        name: String::new(),
        host,
        port,
        certified: tls.then(|| name.to_owned()),
        ssh: None,
    };
    let hosts = addresses.iter().map(IpAddr::to_string);
    Ok(hosts.map(worker).collect())
}

/// The addresses of a name that are workers. With addresses of both families a worker would be asked twice.
fn of_family(mut addresses: Vec<IpAddr>, family: Family) -> Result<Vec<IpAddr>, &'static str> {
    match family {
        Family::V4 => addresses.retain(IpAddr::is_ipv4),
        Family::V6 => addresses.retain(IpAddr::is_ipv6),
        Family::One => {
            if addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6) {
                return Err(
                    "the name has addresses of IPv4 and of IPv6, so workers would count twice: write dns4: or dns6:",
                );
            }
        }
    }
    Ok(addresses)
}

fn listed(path: &Path, tls: bool) -> Result<Vec<Worker>, Failure> {
    let spec = path.display().to_string();
    let text = text(path).map_err(|error| wrong(&spec, &format!("cannot be read: {error}")))?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    let entries: Vec<Targets> = match extension {
        Some("json") => serde_json::from_str(&text).map_err(|error| {
            wrong(
                &spec,
                &format!("no list of targets as Prometheus reads it: {error}"),
            )
        })?,
        Some("yml" | "yaml") => yaml::from_str(&text).map_err(|error| {
            wrong(
                &spec,
                &format!("no list of targets as Prometheus reads it: {error}"),
            )
        })?,
        _ => {
            let lines = text.lines().enumerate();
            return lines
                .map(|(index, line)| (index, line.split('#').next().unwrap_or_default().trim()))
                .filter(|(_, line)| !line.is_empty())
                .map(|(index, line)| {
                    worker(line, tls)
                        .map_err(|error| wrong(&spec, &format!("line {}: {error}", index + 1)))
                })
                .collect();
        }
    };
    let mut found = Vec::new();
    for entry in entries {
        let tls = match entry.labels.scheme.as_deref() {
            None => tls,
            Some("http") => false,
            Some("https") => true,
            Some(other) => return Err(wrong(&spec, &format!("no __scheme__ {other:?}"))),
        };
        for target in entry.targets {
            found.push(worker(&target, tls).map_err(|error| wrong(&spec, &error))?);
        }
    }
    Ok(found)
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(FILE_MAX + 1)
        .read_to_string(&mut text)?;
    match text.len() as u64 {
        0..=FILE_MAX => Ok(text),
        _ => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

/// A worker as `host`, `host:port` or `[address]:port`, with `http://` or `https://` before it where wanted, or as
/// `ssh://[user@]host[:port]`.
fn worker(text: &str, tls: bool) -> Result<Worker, String> {
    if let Some(place) = text.strip_prefix("ssh://") {
        return Ok(Worker::by_ssh(Place::parse(place)?));
    }
    let wrong = || format!("{text:?} is no worker: write HOST or HOST:PORT");
    let (rest, tls) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (rest, true),
        (_, Some(rest)) => (rest, false),
        _ => (text, tls),
    };
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, PORT),
        Some((host, port)) => {
            let port = port.strip_prefix(':').and_then(|port| port.parse().ok());
            (host, port.ok_or_else(wrong)?)
        }
        // An address of version 6 without a port has several colons.
        None if rest.matches(':').count() > 1 => (rest, PORT),
        None => match rest.split_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (rest, PORT),
        },
    };
    let is_host = |letter: char| letter.is_ascii_alphanumeric() || ".-_:%".contains(letter);
    if host.is_empty() || host.len() > 253 || port == 0 || !host.chars().all(is_host) {
        return Err(wrong());
    }
    Ok(Worker {
        name: String::new(),
        host: host.to_owned(),
        port,
        certified: tls.then(|| host.to_owned()),
        ssh: None,
    })
}

/// Gives each worker its name. A worker that is listed twice is asked once, because sums would count it twice.
fn named(workers: Vec<Worker>) -> Vec<Worker> {
    let mut seen = BTreeSet::new();
    let mut once = Vec::new();
    for worker in workers {
        if seen.insert((worker.host.clone(), worker.port)) {
            once.push(worker);
        }
    }
    let by_port = |worker: &&Worker| worker.ssh.is_none();
    let hosts: BTreeSet<&str> = once
        .iter()
        .filter(by_port)
        .map(|worker| worker.host.as_str())
        .gather();
    let is_known_by_host = hosts.len() == once.iter().filter(by_port).count();
    // The name of a node, where each worker has another one.
    let nodes: BTreeSet<&str> = once
        .iter()
        .map(|worker| worker.name.as_str())
        .filter(|name| !name.is_empty())
        .gather();
    let has_nodes = nodes.len() == once.len();
    let mut taken = BTreeSet::new();
    for worker in once.iter_mut().filter(|worker| worker.ssh.is_none()) {
        worker.name = match (is_known_by_host, worker.host.contains(':')) {
            _ if has_nodes => std::mem::take(&mut worker.name),
            (true, _) => worker.host.clone(),
            (false, true) => format!("[{}]:{}", worker.host, worker.port),
            (false, false) => format!("{}:{}", worker.host, worker.port),
        };
        taken.insert(worker.name.clone());
    }
    for worker in once.iter_mut().filter(|worker| worker.ssh.is_some()) {
        worker.name = match taken.contains(&worker.host) {
            true => format!("ssh://{}", worker.host),
            false => worker.host.clone(),
        };
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::Parser as _;
    use std::io::Write as _;

    fn found(name: &str, text: &str, tls: bool) -> Result<Vec<Worker>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        let mut file = File::create(&path).expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let spec = path.to_str().expect("a path");
        let mut arguments = vec!["smtt-ctl", "--cluster", spec, "executors"];
        arguments.extend(tls.then_some("--tls"));
        let args = Args::parse_from(arguments);
        let found = runtime.block_on(workers(&args.cluster));
        found.map_err(|failure| failure.to_string())
    }

    fn seen<'a>(workers: &'a [Worker]) -> Vec<(&'a str, &'a str, u16, bool)> {
        let row = |worker: &'a Worker| {
            let is_certified = worker.certified.is_some();
            (
                worker.name.as_str(),
                worker.host.as_str(),
                worker.port,
                is_certified,
            )
        };
        workers.iter().map(row).collect()
    }

    #[test]
    fn a_list_has_a_worker_per_line() {
        let text = "# cluster\nworker-1\nworker-2:9000 # new\n\nhttps://worker-3\n[2001:db8::1]:77\n2001:db8::2\nworker-1\n";
        assert_eq!(
            seen(&found("hosts", text, false).expect("workers")),
            [
                ("worker-1", "worker-1", 10871, false),
                ("worker-2", "worker-2", 9000, false),
                ("worker-3", "worker-3", 10871, true),
                ("2001:db8::1", "2001:db8::1", 77, false),
                ("2001:db8::2", "2001:db8::2", 10871, false),
            ]
        );
        let text = "127.0.0.1:1\n127.0.0.1:2\nhttp://[::1]:3\n";
        assert_eq!(
            seen(&found("hosts", text, true).expect("workers")),
            [
                ("127.0.0.1:1", "127.0.0.1", 1, true),
                ("127.0.0.1:2", "127.0.0.1", 2, true),
                ("[::1]:3", "::1", 3, false),
            ]
        );
    }

    #[test]
    fn workers_by_ssh_have_names_of_their_own() {
        let text = "a\nssh://a\nssh://me@b:22\nssh://me@b:22\n";
        let workers = found("hosts", text, false).expect("workers");
        let names: Vec<&str> = workers.iter().map(|worker| worker.name.as_str()).collect();
        assert_eq!(names, ["a", "ssh://a", "me@b:22"]);
        assert!(workers[0].ssh.is_none() && workers[1].ssh.is_some());
        let many: String = (0..65).map(|at| format!("ssh://w{at}\n")).collect();
        let error = found("hosts", &many, false).expect_err("too many");
        assert!(error.contains("more than 64 workers by ssh"), "{error}");
        let error = found("hosts", "ssh://-oProxyCommand=x\n", false).expect_err("an option");
        assert!(
            error.contains("line 1") && error.contains("is no machine"),
            "{error}"
        );
    }

    #[test]
    fn a_worker_with_addresses_of_two_families_is_asked_once() {
        let both: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1", "192.0.2.2"]
            .iter()
            .map(|address| address.parse().expect("an address"))
            .collect();
        let of = |family| of_family(both.clone(), family);
        assert!(of(Family::One).expect_err("mixed").contains("dns4:"));
        assert_eq!(of(Family::V4), Ok(vec![both[0], both[2]]));
        assert_eq!(of(Family::V6), Ok(vec![both[1]]));
        let one = vec![both[0], both[2]];
        assert_eq!(of_family(one.clone(), Family::One), Ok(one));
    }

    #[test]
    fn files_of_prometheus_are_read() {
        let json = r#"[{"targets": ["a:1", "b:2"], "labels": {"__scheme__": "https", "zone": "x"}}, {"targets": ["c"]}]"#;
        let yaml = "- targets: ['a:1', \"b:2\"]\n  labels:\n    __scheme__: https\n    zone: x\n- targets:\n    - c\n";
        for (name, text) in [("t.json", json), ("t.yml", yaml), ("t.yaml", yaml)] {
            assert_eq!(
                seen(&found(name, text, false).expect("workers")),
                [
                    ("a", "a", 1, true),
                    ("b", "b", 2, true),
                    ("c", "c", 10871, false)
                ],
                "{name}"
            );
        }
    }

    #[test]
    fn a_wrong_list_is_one_line_that_names_the_place() {
        for (name, text, part) in [
            ("hosts", "", "names no worker"),
            ("hosts", "a\nb c\n", "line 2: \"b c\" is no worker"),
            ("hosts", "a:0\n", "line 1"),
            ("hosts", "a:70000\n", "line 1"),
            ("hosts", "a/path\n", "line 1"),
            ("hosts", "user@a\n", "line 1"),
            ("t.json", "[{\"targets\": 1}]", "no list of targets"),
            ("t.yml", "targets: [a\n", "no list of targets"),
            ("t.json", "[]", "names no worker"),
        ] {
            let error = found(name, text, false).expect_err("wrong");
            assert!(
                error.contains(part) && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
