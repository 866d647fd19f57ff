//! A machine's life with the packages, on an emulated Debian machine whose init is systemd. The worker's, by the commands of
//! README and docs/INSTALL.md: installed, asked, a traced Spark application, upgraded below it to a package with another
//! library and another configuration, removed, purged. Then the history server's, and the step from the package that had
//! both. On the kernel of Debian 12 the worker's with the drop-in of its capability.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::dist::product::{HISTORY, WORKER};
use xtask::dist::{Plan, VERSION};
use xtask::paths::Paths;
use xtask::processor::Processor;
use xtask::setup;
use xtask::spark::JAVA_OPTIONS;
use xtask::vm::{Guest, GuestFile, Init, Machine, prepare, system};

use crate::{alert, documented, history, make, worker};

/// The machine whose kernel needs no more than the unit's capabilities.
const GUEST: &str = "x86-6.12";
/// The machine with Debian 12 and its kernel, which needs the drop-in.
const DEBIAN_12: &str = "x86-6.1";
/// Ten minutes on an idle machine would be long; other work on it makes emulation several times slower.
const LIMIT: Duration = Duration::from_secs(3600);
/// Lines before and after the output of a step.
const STEP: &str = "### step ";
const STATUS: &str = "### status ";
/// The unit's exposure by `systemd-analyze security`, at most.
const EXPOSURE: f64 = 2.5;
/// CAP_BPF, CAP_PERFMON, CAP_CHECKPOINT_RESTORE, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH as the kernel writes them.
const CAPABILITIES: u64 = 1 << 39 | 1 << 38 | 1 << 40 | 1 << 19 | 1 << 2;

const CAP_SYS_ADMIN: u64 = 1 << 21;
pub const SHOW: &str = "systemctl show --property=MainPID --value smtt";

/// A step with its commands.
pub type Step = (&'static str, String);

/// The start of an application, as another user and with the package's jar and library, until it has cached its RDD.
fn start(java: &str) -> Step {
    let commands = format!(
        "mkdir /gates; touch /gates/begin.go; chown -R spark /gates; \
         (cd /home/spark && setsid runuser -u spark -- {java} > /application.log 2>&1; echo $? > /application.status) & \
         wait_for sh -c 'test -e /gates/cached.reached || test -s /application.status'; test -e /gates/cached.reached"
    );
    ("start", commands)
}

/// The steps of a worker whose kernel is before 6.6.
fn steps_of_debian_12(paths: &Paths, java: &str) -> Result<Vec<Step>> {
    let drop_in = documented::drop_in(paths)?.join(" && ");
    let step = |name, commands: &str| (name, commands.to_owned());
    Ok(vec![
        step("install", "uname -r; dpkg -i /smtt.deb"),
        step(
            "active",
            "wait_for systemctl is-active --quiet smtt; systemctl is-active smtt",
        ),
        step(
            "doctor",
            "smtt-ctl doctor > /answer; cat /answer; systemctl stop smtt",
        ),
        (
            "drop-in",
            format!("{drop_in} && wait_for systemctl is-active --quiet smtt"),
        ),
        step("doctor again", "ask doctor"),
        (
            "capabilities",
            format!("sed -n 's/^CapEff:\\t//p' /proc/$({SHOW})/status"),
        ),
        step("verify", "systemd-analyze verify smtt.service"),
        step(
            "security",
            "systemd-analyze security --no-pager smtt.service | tail -n 1",
        ),
        step("user", "useradd --create-home spark"),
        start(java),
        step("traced", "knows rdds 'cached arrays'"),
        step("executors", "ask executors --json"),
        step(
            "finish",
            "touch /gates/cached.go /gates/scanned.go; wait_for test -s /application.status; cat /application.log; cat /application.status",
        ),
    ])
}

/// Steps of the script: name and commands.
fn steps(paths: &Paths, java: &str) -> Result<Vec<Step>> {
    let mut steps = steps_until_traced(java, documented::installation(paths)?);
    steps.extend(alert::steps(paths)?);
    steps.extend(documented::upgrade_and_removal(paths)?);
    steps.extend(steps_after_removal(paths)?);
    Ok(steps)
}

/// The daemon's own lines in the journal: their priorities, and those with an escape code, which the journal writes as
/// bytes.
const JOURNAL: &str = "journalctl --no-pager -o json _COMM=smtt-daemon > /journal && \
     grep -o '\"PRIORITY\":\"[0-9]\"' /journal | sort | uniq -c; ! grep -E 'u001b|\"MESSAGE\":\\[' /journal";
/// Undoes what docs/INSTALL.md has for other distributions.
const TARBALL_GONE: &str = "systemctl disable --now smtt; \
     tar -tzf /worker.tar.gz | sed 's|^[^/]*/|/|' | grep -v '/$' | xargs rm; rm -rf /etc/smtt /var/lib/smtt; systemctl daemon-reload; ! pidof smtt-daemon";

fn steps_until_traced(java: &str, installation: Vec<Step>) -> Vec<Step> {
    let show = SHOW;
    let before = "! id smtt && ! test -e /usr/bin/smtt-ctl".to_owned();
    let mut steps = vec![("before", before)];
    steps.extend(installation);
    steps.extend([
        ("active", "wait_for systemctl is-active --quiet smtt; systemctl is-active smtt".to_owned()),
        ("enabled", "systemctl is-enabled smtt".to_owned()),
        ("files", "dpkg --verify smtt && test -z \"$(dpkg --verify smtt)\"".to_owned()),
        ("user", "stat -c '%U %a' /run/smtt/smtt.sock /var/lib/smtt && ps -o user= -p $($SHOW)".replace("$SHOW", show)),
        ("capabilities", format!("sed -n 's/^CapEff:\\t//p' /proc/$({show})/status")),
        ("ask", "ask status --json".to_owned()),
        ("metrics", "exec 3<>/dev/tcp/127.0.0.1/10871; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3 | grep -a ^smtt_build_info".to_owned()),
        ("verify", "systemd-analyze verify smtt.service".to_owned()),
        ("security", "systemd-analyze security --no-pager smtt.service | tail -n 1".to_owned()),
        ("user outside the group", "useradd --create-home spark; runuser -u spark -- smtt-ctl status".to_owned()),
        start(java),
        ("traced", "knows rdds 'cached arrays'".to_owned()),
        ("executors", "ask executors --json".to_owned()),
        ("journal", JOURNAL.to_owned()),
    ]);
    steps
}

fn steps_after_removal(paths: &Paths) -> Result<Vec<Step>> {
    let (file, commands) = documented::tarball(paths)?;
    let tarball = format!(
        "mkdir /download && cd /download && cp /worker.tar.gz {file} && {} && rm -r /download && \
         wait_for systemctl is-active --quiet smtt && ask status --json",
        commands.join(" && ")
    );
    let history = "systemctl show --property=MainPID --value smtt-history";
    Ok(vec![
        ("tarball", tarball),
        ("tarball gone", TARBALL_GONE.to_owned()),
        ("history", "dpkg -i /smtt-history.deb && test -z \"$(dpkg --verify smtt-history)\"; systemctl is-enabled smtt-history; systemctl is-active smtt-history; true".to_owned()),
        ("history serves", "systemctl enable --now smtt-history && wait_for history /api/v1/applications && cat /answer && echo".to_owned()),
        ("history user", format!("pid=$({history}); stat -c '%u' /proc/$pid; sed -n 's/^CapEff:\\t//p' /proc/$pid/status; stat -L -c '%u %a' /var/lib/smtt-history")),
        ("history verify", "systemd-analyze verify smtt-history.service".to_owned()),
        ("history security", "systemd-analyze security --no-pager smtt-history.service | tail -n 1".to_owned()),
        ("history upgrade", format!(
            "before=$({history}); dpkg -i /smtt-history-next.deb && wait_for history / && after=$({history}) && echo \"pids $before $after\""
        )),
        ("history purge", "touch /var/lib/private/smtt-history/kept; dpkg -P smtt-history; ! test -e /usr/bin/smtt-history && ! systemctl is-active --quiet smtt-history && ! systemctl cat smtt-history.service && ! test -L /etc/systemd/system/multi-user.target.wants/smtt-history.service && ls /var/lib/private/smtt-history".to_owned()),
        // A package as the former one, which had the program: dpkg must not have both own the file.
        ("former",
            "mkdir -p /former/DEBIAN /former/usr/bin && ln -s smtt /former/usr/bin/smtt-history && \
             printf 'Package: smtt\nVersion: 0.1.0-1\nArchitecture: all\nMaintainer: none <none@localhost>\nDescription: former\n' \
             > /former/DEBIAN/control && dpkg-deb --build /former /former.deb && dpkg -i /former.deb".to_owned()),
        ("history beside the former", "! dpkg -i /smtt-history.deb; dpkg-query -W -f '${db:Status-Status}\n' smtt-history".to_owned()),
        ("upgrade of the former", "dpkg -i /smtt.deb && ! test -e /usr/bin/smtt-history && dpkg -P smtt && dpkg -i /former.deb".to_owned()),
        ("both", "dpkg -i /smtt.deb /smtt-history.deb && dpkg -S /usr/bin/smtt-history && test -z \"$(dpkg --verify)\" && smtt-history --version && smtt-ctl --version".to_owned()),
    ])
}

/// `wait_for` repeats a command until it succeeds. `ask` repeats a question to the daemon until it is answered, where
/// 1 is an answer too: what the emulated machine lacks makes it incomplete.
const FUNCTIONS: &str = "export DEBIAN_FRONTEND=noninteractive LC_ALL=C RUST_BACKTRACE=0
wait_for() { n=0; while ! \"$@\"; do n=$((n + 1)); [ $n -lt 600 ] || return 1; sleep 1; done; }
ask() {
  n=0
  while smtt-ctl \"$@\" > /answer 2> /complaint; s=$?; [ $s -gt 1 ]; do
    n=$((n + 1)); [ $n -lt 20 ] || { cat /complaint; return $s; }; sleep 1
  done
  cat /answer
}
history() {
  exec 3<>/dev/tcp/127.0.0.1/18081 && printf 'GET %s HTTP/1.0\\r\\n\\r\\n' $1 >&3 && cat <&3 > /answer && grep -q '^HTTP/1.. 200' /answer
}
knows() { for n in $(seq 60); do ask $1 --json | grep -q \"$2\" && break; sleep 1; done; ask $1 --json; }
";

fn script(steps: Vec<Step>) -> String {
    let mut script = FUNCTIONS.to_owned();
    for (name, commands) in steps {
        // A shell of its own per step: redirections end with it.
        script += &format!("echo '{STEP}{name}'\n( {commands} )\necho \"{STATUS}$?\"\n");
    }
    script
}

/// The JVM's command: Spark in local mode, in which the driver is the executor.
fn java() -> String {
    let options = JAVA_OPTIONS.join(" ");
    format!(
        "java {options} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms640m -Xmx640m -Xmn400m \
         -javaagent:/usr/lib/smtt/smtt-marker.jar -cp '/fixture.jar:/usr/lib/smtt/smtt-marker.jar:/opt/spark/jars/*' \
         -Dspark.smtt.fixture.barrier=/gates -Dspark.plugins.defaultList=io.smtt.marker.SmttPlugin \
         '-Dspark.master=local[2]' -Dspark.ui.enabled=false -Dspark.driver.host=127.0.0.1 \
         -Dspark.driver.bindAddress=127.0.0.1 io.smtt.fixture.CachedScan 2 32 200"
    )
}

/// Output and status of each step.
#[derive(Debug, Default)]
pub struct Said {
    steps: BTreeMap<String, (String, Option<i32>)>,
    now: String,
}

impl Said {
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix(STEP) {
            self.now = name.to_owned();
            self.steps.insert(self.now.clone(), Default::default());
        } else if let Some((output, status)) = self.steps.get_mut(&self.now) {
            match line.strip_prefix(STATUS) {
                Some(text) => *status = text.trim().parse().ok(),
                None => *output += &format!("{line}\n"),
            }
        }
    }

    /// Output of a step that ended with the status.
    pub fn ended(&self, name: &str, wanted: i32) -> Result<&str> {
        let (output, status) = self
            .steps
            .get(name)
            .with_context(|| format!("the step {name} did not run"))?;
        ensure!(
            *status == Some(wanted),
            "{name} ended with {status:?}:\n{output}"
        );
        Ok(output)
    }

    pub fn rows(&self, name: &str) -> Result<Vec<Value>> {
        let text = self.ended(name, 0)?;
        let answer: Value =
            serde_json::from_str(text).with_context(|| format!("{name}: {text}"))?;
        let rows = answer
            .as_array()
            .cloned()
            .or_else(|| answer["rows"].as_array().cloned());
        rows.with_context(|| format!("{name} has no rows: {answer}"))
    }
}

#[test]
fn packages_are_installed_upgraded_removed_and_purged_under_systemd() -> Result<()> {
    let paths = Paths::find()?;
    setup::for_machines(&paths)?;
    let mut plan = Plan::trial(&paths, Processor::X86);
    plan.revision += 1;
    let second = make(&paths, &plan)?;
    let second = |product| second.of(product, Processor::X86);
    let folder = tempfile::tempdir()?;
    let next = documented::next_release(&second(&WORKER)?.deb, folder.path())?;
    let said = run(
        &paths,
        GUEST,
        &[
            (&worker()?.deb, "/smtt.deb"),
            (&next, "/smtt-next.deb"),
            (&worker()?.tarball, "/worker.tar.gz"),
            (&history()?.deb, "/smtt-history.deb"),
            (&second(&HISTORY)?.deb, "/smtt-history-next.deb"),
        ],
        steps(&paths, &java())?,
    )?;
    check(&said)
}

#[test]
fn a_worker_of_debian_12_traces_with_the_drop_in() -> Result<()> {
    let paths = Paths::find()?;
    setup::for_machines(&paths)?;
    let files: &[(&Path, _)] = &[(&worker()?.deb, "/smtt.deb")];
    let said = run(
        &paths,
        DEBIAN_12,
        files,
        steps_of_debian_12(&paths, &java())?,
    )?;
    let installed = said.ended("install", 0)?;
    ensure!(
        installed.starts_with("6.1.") && installed.contains("without CAP_SYS_ADMIN"),
        "{installed}"
    );
    ensure!(said.ended("active", 0)?.trim() == "active");
    // Without the drop-in it says what is missing.
    let needs = "missing: CAP_SYS_ADMIN";
    let doctor = said.ended("doctor", 0)?;
    ensure!(doctor.contains(needs), "{doctor}");
    said.ended("drop-in", 0)?;
    let doctor = said
        .ended("doctor again", 1)
        .or_else(|_| said.ended("doctor again", 0))?;
    ensure!(!doctor.contains(needs), "{doctor}");
    let capabilities = said.ended("capabilities", 0)?.trim();
    ensure!(
        u64::from_str_radix(capabilities, 16)? == CAPABILITIES | CAP_SYS_ADMIN,
        "{capabilities}"
    );
    let complaints = said.ended("verify", 0)?;
    ensure!(!complaints.contains("smtt"), "{complaints}");
    let of_unit = exposure(said.ended("security", 0)?)?;
    println!("exposure with the drop-in {of_unit}");
    ensure!(of_unit <= EXPOSURE, "{of_unit}");
    is_traced(&said)?;
    let finished = said.ended("finish", 0)?;
    ensure!(finished.contains("RESULT scan of 2 arrays"), "{finished}");
    ensure!(finished.trim_end().ends_with("\n0"), "{finished}");
    Ok(())
}

/// Runs the steps on a machine with these files.
fn run(paths: &Paths, guest: &str, files: &[(&Path, &str)], steps: Vec<Step>) -> Result<Said> {
    let guest = Guest::named(Some(guest))?.pop().context("the guest")?;
    let prepared = prepare(paths, guest)?;
    let fixture = paths.fixture_jar();
    let files = files.iter().copied().chain([(&*fixture, "/fixture.jar")]);
    let machine = Machine {
        guest,
        prepared: &prepared,
        files: files
            .map(|(here, there)| GuestFile {
                here: here.to_owned(),
                there: there.to_owned(),
            })
            .collect(),
        disk: Some(system::disk(paths)?),
        init: Init::Systemd,
        time_out: LIMIT,
        log: paths
            .target
            .join(format!("log/vm-packages-{}.log", guest.name)),
    };
    let mut said = Said::default();
    let ran = machine.run(&script(steps), |line| said.line(line))?;
    println!(
        "{}: up in {:?}, ran for {:?}; {} has the console",
        guest.name,
        ran.boot,
        ran.script,
        machine.log.display()
    );
    Ok(said)
}

fn check(said: &Said) -> Result<()> {
    said.ended("before", 0)?;
    said.ended("install", 0)?;
    said.ended("doctor", 0)?;
    ensure!(said.ended("active", 0)?.trim() == "active");
    ensure!(said.ended("enabled", 0)?.trim() == "enabled");
    said.ended("files", 0)?;
    ensure!(
        said.ended("user", 0)? == "smtt 660\nsmtt 755\nsmtt\n",
        "{:?}",
        said.ended("user", 0)
    );
    let capabilities = said.ended("capabilities", 0)?.trim();
    ensure!(
        u64::from_str_radix(capabilities, 16)? == CAPABILITIES,
        "{capabilities}"
    );
    let status: Value = serde_json::from_str(said.ended("ask", 0)?)?;
    ensure!(status.is_object(), "{status}");
    ensure!(said.ended("metrics", 0)?.contains(VERSION));
    let complaints = said.ended("verify", 0)?;
    ensure!(!complaints.contains("smtt"), "{complaints}");
    let of_unit = exposure(said.ended("security", 0)?)?;
    ensure!(of_unit <= EXPOSURE, "{of_unit}");
    println!("exposure {of_unit}");
    // Not a member of the group smtt.
    said.ended("user outside the group", 77)?;

    let pid = &is_traced(said)?["pid"];
    let journal = said.ended("journal", 0)?;
    ensure!(journal.contains("\"PRIORITY\":\"6\""), "{journal}");
    alert::check(said)?;

    documented::check(said, pid)?;
    let said_then = said.ended("tarball", 0)?;
    // systemctl says what it links.
    let (_, status) = said_then.split_once('{').context("no status")?;
    let status: Value = serde_json::from_str(&format!("{{{status}"))?;
    ensure!(status["version"] == VERSION, "{status}");
    said.ended("tarball gone", 0)?;
    check_history(said)
}

/// The application's RDD is listed with its memory and its page faults. Returns the only executor.
fn is_traced(said: &Said) -> Result<Value> {
    said.ended("start", 0)?;
    let rows = said.rows("traced")?;
    let cached = rows.iter().find(|row| row["name"] == "cached arrays");
    let cached = cached.with_context(|| format!("{rows:#?}"))?;
    // Two arrays of 16 MiB, with their headers. Huge pages make the number of page faults a matter of luck.
    let storage = cached["storage_memory_bytes"].as_u64().unwrap_or(0);
    let arrays = 32 << 20;
    ensure!(
        (arrays..arrays + arrays / 100).contains(&storage),
        "{storage} bytes: {cached}"
    );
    let faults = cached["page_faults_write"].as_u64().unwrap_or(0);
    ensure!(faults > 0, "no page fault: {cached}");
    let executors = said.rows("executors")?;
    ensure!(executors.len() == 1, "{executors:#?}");
    Ok(executors[0].clone())
}

fn check_history(said: &Said) -> Result<()> {
    // It starts only where the administrator says so.
    let installed = said.ended("history", 0)?;
    ensure!(installed.ends_with("disabled\ninactive\n"), "{installed}");
    let answer = said.ended("history serves", 0)?;
    ensure!(answer.trim_end().ends_with("[]"), "{answer}");
    let user = said.ended("history user", 0)?;
    let words: Vec<u64> = user
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| user.to_owned())?;
    let [of_process, capabilities, of_store, mode] = words[..] else {
        anyhow::bail!("{user}");
    };
    // The users that systemd gives for the time that a service runs.
    ensure!((61_184..=65_519).contains(&of_process), "{user}");
    ensure!(
        (capabilities, of_store, mode) == (0, of_process, 750),
        "{user}"
    );
    let complaints = said.ended("history verify", 0)?;
    ensure!(!complaints.contains("smtt-history"), "{complaints}");
    let of_unit = exposure(said.ended("history security", 0)?)?;
    ensure!(of_unit <= EXPOSURE, "{of_unit}");
    println!("exposure of the history {of_unit}");
    let upgrade = said.ended("history upgrade", 0)?;
    let pids = upgrade.lines().find_map(|line| line.strip_prefix("pids "));
    let (before, after) = pids.and_then(|pids| pids.split_once(' ')).context("pids")?;
    ensure!(before != after && after != "0", "{upgrade}");
    let kept = said.ended("history purge", 0)?;
    ensure!(kept.trim_end().ends_with("kept"), "{kept}");

    said.ended("former", 0)?;
    let refused = said.ended("history beside the former", 0)?;
    ensure!(
        refused.contains("breaks smtt") && !refused.trim_end().ends_with("\ninstalled"),
        "{refused}"
    );
    let alone = said.ended("upgrade of the former", 0)?;
    ensure!(alone.contains("install smtt-history"), "{alone}");
    let both = said.ended("both", 0)?;
    ensure!(
        both.contains("smtt-history: /usr/bin/smtt-history"),
        "{both}"
    );
    Ok(())
}

/// The exposure in the last line of `systemd-analyze security`.
fn exposure(security: &str) -> Result<f64> {
    let (_, rest) = security
        .split_once("exposure level for ")
        .with_context(|| security.to_owned())?;
    rest.split(": ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .with_context(|| security.to_owned())
}
