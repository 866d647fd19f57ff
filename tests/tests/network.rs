//! `smtt-ctl --cluster` and twenty real daemons, each in a network namespace with an address, a configuration, a library and
//! an executor of its own. The answers are the sums of the parts; a frozen daemon and one that ended are named.
//!
//! The witnesses are each daemon's own socket, the workloads' counts, and the kernel's of their page faults. All daemons run
//! on one kernel: each probes its own copy of the library, whose bytes differ, so it has its own executor only.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_tests::json::number;
use smtt_tests::lab::programs;
use smtt_tests::skip::skip;
use smtt_tests::workload::{Workload, library};
use tempfile::TempDir;
use xtask::process::{Running, is_root, output, wait_for};

/// Workers.
const WORKERS: usize = 20;
/// Port of each, on its own address.
const PORT: u16 = 10_871;
/// How long all daemons may take to start, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(240);
/// How long figures take to arrive.
const LIMIT: Duration = Duration::from_secs(120);
/// What a worker has for an answer: more than by default, because all of them share these CPUs.
const DEADLINE: u64 = 20;
/// As much where two do not answer: the client waits for them until then.
const SHORT_DEADLINE: u64 = 5;
/// Bound of an answer of all workers, when this machine has time: twenty daemons share these CPUs with whatever else runs.
const ANSWER: Duration = Duration::from_secs(2);
/// Bound of an answer where two workers do not answer: what they have, and that of the others.
const ANSWER_OF_OTHERS: Duration = Duration::from_secs(15);
/// Selects the executors of this test: all daemons also see other JVMs of this kernel that carry a marker.
const OURS: [&str; 2] = ["--app", "workload"];
const TOKEN: &str = "5f4dcc3b5aa765d61d8327deb882cf99";

/// Network namespaces with a pair of interfaces each; dropping this value removes them.
struct Network {
    names: Vec<String>,
    second: u8,
}

impl Network {
    /// Makes them, or says why this machine cannot.
    fn make() -> Result<Result<Self, String>> {
        let tag = std::process::id() % 100_000;
        let mut network = Self {
            names: Vec::new(),
            // A network of 10.0.0.0/8 that nothing here uses.
            second: 64 + (tag % 128) as u8,
        };
        for index in 0..WORKERS {
            let name = format!("smtt{tag}x{index}");
            let (near, far) = network.addresses(index);
            let add = output(Command::new("ip").args(["netns", "add", &name]));
            if let (Err(error), true) = (&add, network.names.is_empty()) {
                return Ok(Err(format!("{error:#}")));
            }
            add?;
            network.names.push(name.clone());
            let lines = [
                format!("link add {name} type veth peer name eth0 netns {name}"),
                format!("address add {near}/30 dev {name}"),
                format!("link set {name} up"),
                format!("-n {name} address add {far}/30 dev eth0"),
                format!("-n {name} link set eth0 up"),
                format!("-n {name} link set lo up"),
            ];
            for line in lines {
                let made = output(Command::new("ip").args(line.split(' ')));
                if let (Err(error), 0) = (&made, index) {
                    return Ok(Err(format!("{error:#}")));
                }
                made?;
            }
        }
        Ok(Ok(network))
    }

    /// Addresses of this machine and of a worker.
    fn addresses(&self, index: usize) -> (String, String) {
        let of = |last| format!("10.{}.{index}.{last}", self.second);
        (of(1), of(2))
    }

    /// A command in the namespace of a worker. Only the network is another: `ip netns exec` would also hide the folders
    /// below /sys by which probes are attached.
    fn command(&self, index: usize, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        let name = &self.names[index];
        command.arg(format!("--net=/run/netns/{name}")).arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // The pair goes with its end in the namespace, when the last process there has ended.
            let _ = output(Command::new("ip").args(["link", "delete", name]));
            let _ = output(Command::new("ip").args(["netns", "delete", name]));
        }
    }
}

/// The worker whose daemon is frozen, and the one whose daemon ends.
const FROZEN: usize = 3;
const ENDED: usize = 11;

/// A file that only its owner reads.
fn secret(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o600))?)
}

/// An authority, and one certificate for the addresses of all workers.
fn certificates(folder: &Path, network: &Network) -> Result<()> {
    let names = (0..WORKERS).map(|index| format!("IP:{}", network.addresses(index).1));
    let names: Vec<String> = names.collect();
    fs::write(
        folder.join("names"),
        format!("subjectAltName={}\n", names.join(",")),
    )?;
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for arguments in [
        format!("req -x509 {key} -keyout ca.key -out ca.crt -days 30 -subj /CN=authority"),
        format!("req {key} -keyout server.key -out server.csr -subj /CN=workers"),
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 30 -extfile names".to_owned(),
    ] {
        let mut openssl = Command::new("openssl");
        output(openssl.args(arguments.split(' ')).current_dir(folder))?;
    }
    secret(
        &folder.join("web.yml"),
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n",
    )
}

/// The workers. Daemons end before their network goes.
struct Workers {
    executors: Vec<Workload>,
    daemons: Vec<Running>,
    programs: PathBuf,
    network: Network,
    folder: TempDir,
}

impl Workers {
    fn start(network: Network) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        certificates(folder.path(), &network)?;
        let mut workers = Self {
            executors: Vec::new(),
            daemons: Vec::new(),
            programs: programs()?,
            network,
            folder,
        };
        let mut list = String::new();
        for index in 0..WORKERS {
            let (_, address) = workers.network.addresses(index);
            list += &format!("{address}:{PORT}\n");
            let daemon = workers.start_one(index, &address)?;
            workers.daemons.push(daemon);
        }
        fs::write(workers.path("workers"), list)?;
        secret(&workers.path("token"), &format!("{TOKEN}\n"))?;
        Ok(workers)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Folder of a worker.
    fn own(&self, index: usize) -> PathBuf {
        self.path(&format!("worker-{index}"))
    }

    fn start_one(&self, index: usize, address: &str) -> Result<Running> {
        let own = self.own(index);
        fs::create_dir_all(&own)?;
        let copy = own.join(LIBRARY_NAME);
        if !copy.exists() {
            let mut bytes = fs::read(library()?)?;
            bytes.extend(vec![0; index + 1]);
            fs::write(&copy, bytes)?;
        }
        // The common token, and one of this worker.
        secret(&own.join("tokens"), &format!("{TOKEN}\n{index:032x}\n"))?;
        let at = |name: &str| own.join(name).display().to_string();
        fs::create_dir_all(own.join("store"))?;
        let history = match index {
            ENDED => format!("[history]\nstore = {:?}\n", at("store")),
            _ => String::new(),
        };
        let config = format!(
            "[web]\nlisten_address = \"{address}:{PORT}\"\nnames = \"shown\"\nscrape_interval = \"0s\"\napi = true\n\
             token_file = {:?}\nconfig_file = {:?}\n\n[control]\nsocket = {:?}\n\n[marker]\nlibraries = [{:?}]\n\n\
             [postmortem]\nfolder = {:?}\n\n\
             # The counters of a processor are few, and twenty daemons would share them.\n[page_walks]\nenabled = false\n[probe.on_cpu]\nsamples_per_second = 0\n{history}",
            at("tokens"),
            self.path("web.yml").display().to_string(),
            at("smtt.sock"),
            copy.display().to_string(),
            at("postmortem"),
        );
        let file = own.join("smtt.toml");
        fs::write(&file, config)?;
        let daemon = self.programs.join("smtt-daemon");
        let mut command = self.network.command(index, &daemon);
        command
            .arg("--config")
            .arg(&file)
            .env_remove("NOTIFY_SOCKET");
        Running::start("smtt-daemon", &mut command, &own.join("daemon.log"))
    }

    /// Asks all workers over the network.
    fn ask(&self, arguments: &[&str], deadline: u64) -> Result<(Output, Duration)> {
        let start = Instant::now();
        let output = self.ctl(arguments, deadline).arg("--json").output()?;
        Ok((output, start.elapsed()))
    }

    fn ctl(&self, arguments: &[&str], deadline: u64) -> Command {
        let mut ctl = Command::new(self.programs.join("smtt-ctl"));
        ctl.arg("--cluster")
            .arg(self.path("workers"))
            .arg("--cacert")
            .arg(self.path("ca.crt"))
            .arg("--token-file")
            .arg(self.path("token"))
            .args(["--deadline", &deadline.to_string()])
            .args(arguments)
            .args(
                arguments
                    .first()
                    .filter(|it| **it != "status")
                    .map_or(&[][..], |_| &OURS),
            );
        ctl
    }

    /// The answer of all workers.
    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let (output, took) = self.ask(arguments, DEADLINE)?;
        ensure!(
            output.status.success(),
            "{arguments:?} ({took:?}): {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Rows of a listing that the daemon of a worker gives on its own socket.
    fn own_rows(&self, index: usize, listing: &str) -> Result<Vec<Value>> {
        let text = output(
            Command::new(self.programs.join("smtt-ctl"))
                .arg("--socket")
                .arg(self.own(index).join("smtt.sock"))
                .args([listing, "--json"])
                .args(OURS),
        )?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Waits until each daemon answers and is ready.
    fn ready(&mut self) -> Result<()> {
        let start = Instant::now();
        for (index, daemon) in self.daemons.iter_mut().enumerate() {
            let socket = self.folder.path().join(format!("worker-{index}/smtt.sock"));
            let ctl = self.programs.join("smtt-ctl");
            let limit = START_LIMIT.saturating_sub(start.elapsed());
            wait_for("the daemon gets ready", limit, || {
                if let Some(status) = daemon.poll()? {
                    anyhow::bail!("daemon {index} ended ({status}){}", daemon.hint());
                }
                let status = Command::new(&ctl)
                    .arg("--socket")
                    .arg(&socket)
                    .args(["status", "--json"])
                    .output()?;
                let status: Option<Value> = serde_json::from_slice(&status.stdout).ok();
                let ready = status.is_some_and(|status| status["ready"] == true);
                Ok(ready.then_some(()))
            })
            .with_context(|| format!("daemon {index}:{}", daemon.hint()))?;
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for daemon in &self.daemons {
            daemon.signal(libc::SIGTERM);
            daemon.signal(libc::SIGCONT);
        }
    }
}

/// Resident memory of a process in KiB.
fn resident_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("no VmRSS")?.parse()?)
}

fn rows(answer: &Value) -> Result<&Vec<Value>> {
    answer["rows"]
        .as_array()
        .with_context(|| format!("no rows: {answer}"))
}

fn sum(rows: &[Value], field: &str) -> Result<u64> {
    rows.iter().map(|row| number(row, field)).sum()
}

/// Starts an executor beside each daemon and lets it work; returns what each says.
fn work(workers: &mut Workers) -> Result<Vec<Value>> {
    let mut said = Vec::new();
    for index in 0..WORKERS {
        // Each has other figures.
        let (pages, blocks) = (500 + 10 * index, 10 + index);
        let options = [format!("pages={pages}"), format!("blocks={blocks}")];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let copy = workers.own(index).join(LIBRARY_NAME);
        let mut executor = Workload::start_with(&copy, "releases", &options)?;
        said.push(executor.run()?);
        workers.executors.push(executor);
    }
    Ok(said)
}

#[test]
fn twenty_daemons_in_network_namespaces_are_one_cluster() -> Result<()> {
    if !is_root() {
        return skip("root", "the daemon needs CAP_BPF and CAP_PERFMON");
    }
    let network = match Network::make()? {
        Ok(network) => network,
        Err(why) => return skip("network_namespaces", why),
    };
    let begin = Instant::now();
    let mut workers = Workers::start(network)?;
    workers.ready()?;
    let resident: Vec<u64> = workers
        .daemons
        .iter()
        .map(|daemon| resident_kib(daemon.pid()))
        .collect::<Result<_>>()?;
    println!(
        "{WORKERS} daemons are ready after {:.1?}, with {} MiB together",
        begin.elapsed(),
        resident.iter().sum::<u64>() >> 10
    );
    let said = work(&mut workers)?;

    // The figures of all executors have arrived: those of each daemon's socket, and the workloads' own.
    let listed = |workers: &Workers| -> Result<(Vec<Value>, Vec<Value>)> {
        let all = workers.json(&["rdds", "--by", "name"])?;
        let executors = workers.json(&["executors"])?;
        Ok((rows(&all)?.clone(), rows(&executors)?.clone()))
    };
    let (mut last, mut figures) = (String::new(), (Vec::new(), Vec::new()));
    wait_for("the figures of all workers", LIMIT, || {
        figures = listed(&workers)?;
        let of = |name: &str| figures.0.iter().find(|row| row["group"] == name);
        let (Some(links), Some(ranks)) = (of("links"), of("ranks")) else {
            return Ok(None);
        };
        let right = number(links, "page_faults")? == sum(&said, "faults")?
            && number(ranks, "page_faults")? == sum(&said, "new_faults")?
            && number(links, "storage_memory_bytes")? == sum(&said, "block_bytes")?
            && links["executors"] == WORKERS;
        last = format!("{links}, {ranks}");
        Ok(right.then_some(()))
    })
    .with_context(|| format!("the workloads say {said:?}; the cluster {last}"))?;
    let blocks: usize = (0..WORKERS).map(|index| 10 + index).sum();
    let links = figures.0.iter().find(|row| row["group"] == "links");
    ensure!(
        links.context("no links")?["partitions_cached"] == blocks,
        "{blocks} blocks: {links:?}"
    );
    // Sums and parts: each worker's rows are those of its daemon's own socket.
    ensure!(figures.1.len() == WORKERS, "{:#?}", figures.1);
    for index in 0..WORKERS {
        let (_, address) = workers.network.addresses(index);
        let own = workers.own_rows(index, "executors")?;
        let own = own.first().context("no executor")?;
        ensure!(
            own["pid"] == workers.executors[index].pid(),
            "worker {index} has {own:#}"
        );
        let mut of = figures.1.iter().filter(|row| row["worker"] == address);
        let row = of.next().with_context(|| format!("no row of {address}"))?;
        for field in [
            "pid",
            "page_faults_attributed",
            "storage_memory_bytes",
            "blocks",
        ] {
            ensure!(row[field] == own[field], "{field}: {row:#} {own:#}");
        }
    }

    // Time of an answer, over TLS with the token, from the client's start to its end.
    for arguments in [&["executors"][..], &["rdds", "--by", "query"], &["status"]] {
        let begun = Instant::now();
        loop {
            let (answer, took) = workers.ask(arguments, DEADLINE)?;
            ensure!(answer.status.success(), "{arguments:?}: {answer:?}");
            println!("{arguments:?} of {WORKERS} workers took {took:.2?}");
            if took < ANSWER {
                break;
            }
            ensure!(begun.elapsed() < LIMIT, "{arguments:?} took {took:?}");
        }
    }
    // Without the token a worker gives nothing.
    secret(&workers.path("token"), "0123456789abcdef0123456789abcdef\n")?;
    let (refused, _) = workers.ask(&["executors"], DEADLINE)?;
    ensure!(
        matches!(refused.status.code(), Some(69 | 77)),
        "{refused:?}"
    );
    secret(&workers.path("token"), &format!("{TOKEN}\n"))?;

    missing(&mut workers, &figures.1)?;
    again(&mut workers, &figures.1, &said)?;
    let executors = std::mem::take(&mut workers.executors);
    for executor in executors {
        executor.end()?;
    }
    drop(workers);
    println!("all took {:.1?}", begin.elapsed());
    Ok(())
}

/// One daemon is frozen and one has ended: the answer names both, and is that of the others.
fn missing(workers: &mut Workers, before: &[Value]) -> Result<()> {
    workers.daemons[FROZEN].signal(libc::SIGSTOP);
    workers.daemons[ENDED].stop();
    let (answer, took) = workers.ask(&["executors"], SHORT_DEADLINE)?;
    println!("with one frozen and one ended worker it took {took:.2?}");
    ensure!(answer.status.code() == Some(3), "{answer:?}");
    ensure!(took < ANSWER_OF_OTHERS, "it took {took:?}");
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    let all: Value = serde_json::from_slice(&answer.stdout)?;
    ensure!(all["complete"] == false, "{all:#}");
    let names = [FROZEN, ENDED].map(|index| workers.network.addresses(index).1);
    for worker in all["workers"].as_array().context("no workers")? {
        let name = worker["host"].as_str();
        let is_missing = names.iter().any(|missing| Some(missing.as_str()) == name);
        ensure!(
            worker["error"].is_null() != is_missing,
            "{worker:#} of {all:#}"
        );
    }
    for name in &names {
        ensure!(said.contains(name.as_str()), "{name} is not named: {said}");
    }
    let there = rows(&all)?;
    ensure!(there.len() == WORKERS - 2, "{there:#?}");
    let parts: Vec<Value> = before
        .iter()
        .filter(|row| !names.iter().any(|name| row["worker"] == name.as_str()))
        .cloned()
        .collect();
    let field = "page_faults_attributed";
    ensure!(sum(there, field)? == sum(&parts, field)?, "{there:#?}");
    // It goes on, and is there again.
    workers.daemons[FROZEN].signal(libc::SIGCONT);
    wait_for("the frozen daemon is there again", LIMIT, || {
        let (answer, _) = workers.ask(&["executors"], DEADLINE)?;
        let all: Value = serde_json::from_slice(&answer.stdout)?;
        sleep(Duration::from_millis(200));
        Ok((rows(&all)?.len() == WORKERS - 1).then_some(()))
    })
}

/// The daemon that had ended starts again. What it measured before is in the answer of all workers: its rows beside those of
/// the present run, and in sums.
fn again(workers: &mut Workers, before: &[Value], said: &[Value]) -> Result<()> {
    let (_, address) = workers.network.addresses(ENDED);
    let daemon = workers.start_one(ENDED, &address)?;
    if let Some(place) = workers.daemons.get_mut(ENDED) {
        *place = daemon;
    }
    workers.ready()?;
    let of = |all: &Value| -> Result<Vec<Value>> {
        let of = rows(all)?.iter().filter(|row| row["worker"] == address);
        Ok(of.cloned().collect())
    };
    // This executor describes itself once in its life, so the present run knows none of this application.
    let (answer, _) = workers.ask(&["executors"], DEADLINE)?;
    let errors = String::from_utf8_lossy(&answer.stderr);
    let all: Value = serde_json::from_slice(&answer.stdout)?;
    let found = of(&all)?;
    ensure!(found.len() == 1, "{found:#?}: {errors}");
    let is_before = |row: &&Value| row["earlier"].is_object();
    let then = found.iter().find(is_before).context("not of before")?;
    let known = before.iter().find(|row| row["worker"] == address);
    let known = known.context("no row before")?;
    for field in ["pid", "page_faults_attributed"] {
        ensure!(then[field] == known[field], "{field}: {then:#} {known:#}");
    }
    let hosts = all["workers"].as_array().context("no workers")?;
    let with_runs = hosts.iter().filter(|it| it["earlier_runs"].is_array());
    let with_runs: Vec<&Value> = with_runs.map(|it| &it["host"]).collect();
    ensure!(with_runs == [&Value::from(address.as_str())], "{hosts:#?}");
    let text = output(&mut workers.ctl(&["executors"], DEADLINE))?;
    println!("{text}");
    for part in ["MEASURED", &format!("not measured on {address}: ")] {
        ensure!(text.contains(part), "no {part} in {text}");
    }
    let sums = workers.json(&["rdds", "--by", "name"])?;
    let links = rows(&sums)?.iter().find(|row| row["group"] == "links");
    let links = links.context("no links")?;
    ensure!(
        number(links, "page_faults")? == sum(said, "faults")?,
        "{links:#} of {said:#?}"
    );
    let without = of(&workers.json(&["executors", "--this-run"])?)?;
    ensure!(without.is_empty(), "{without:#?}");
    Ok(())
}
