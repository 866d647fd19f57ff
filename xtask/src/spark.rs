//! Spark of one version on one JDK: `spark-submit` and stand-alone clusters, each in a separate folder.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::http;
use crate::paths::{Jdk, Paths};
use crate::process::{Running, free_port, wait_for};

/// How long Spark may take to come up on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(240);

/// The options of Spark's own start scripts for a JVM of release 17 or later, for a JVM that is started without the
/// scripts.
pub const JAVA_OPTIONS: [&str; 12] = [
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.invoke=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.net=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.cs=ALL-UNNAMED",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    "--add-opens=java.base/sun.util.calendar=ALL-UNNAMED",
];

/// Options of JVMs that only start others: they end before a better compiler or a parallel collector pays for itself. The
/// better compiler alone takes a third of the CPU time of a short job's driver.
const QUICK_START: &str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC";
/// The quick one of the JVM's two compilers alone.
pub const QUICK_COMPILER: &str = "-XX:TieredStopAtLevel=1";

/// A Spark distribution with a separate scratch folder.
#[derive(Clone, Debug)]
pub struct Spark {
    /// The version, for example `4.0.5`.
    pub version: String,
    java_home: PathBuf,
    home: PathBuf,
    python: PathBuf,
    scratch: PathBuf,
}

impl Spark {
    /// Spark `version` on `jdk`; it writes all files to `scratch`.
    ///
    /// # Errors
    /// When that version is not set up.
    pub fn new(paths: &Paths, version: &str, jdk: &Jdk, scratch: &Path) -> Result<Self> {
        let distribution = paths.spark_home(version)?;
        // Workers write into SPARK_HOME/work; a home of symbolic links keeps the cache unchanged.
        let home = scratch.join("spark-home");
        if !home.exists() {
            fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
            for name in ["bin", "jars", "sbin", "python", "data"] {
                let from = distribution.join(name);
                if from.exists() {
                    symlink(&from, home.join(name))?;
                }
            }
        }
        fs::create_dir_all(scratch.join("conf"))?;
        fs::create_dir_all(scratch.join("local"))?;
        Ok(Self {
            version: version.to_owned(),
            java_home: jdk.home.clone(),
            home,
            python: paths.spark_env(version).join("bin/python"),
            scratch: scratch.to_path_buf(),
        })
    }

    /// A program of Spark, isolated from the user's own Spark settings.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.home.join("bin").join(name));
        for (key, _) in std::env::vars_os() {
            let text = key.to_string_lossy();
            if text.starts_with("SPARK_")
                || text.starts_with("PYSPARK_")
                || text.ends_with("JAVA_OPTIONS")
                || text == "JAVA_TOOL_OPTIONS"
            {
                command.env_remove(&key);
            }
        }
        command
            .env("SPARK_HOME", &self.home)
            .env("SPARK_CONF_DIR", self.scratch.join("conf"))
            .env("SPARK_LOCAL_DIRS", self.scratch.join("local"))
            .env("SPARK_LOCAL_IP", "127.0.0.1")
            .env("JAVA_HOME", &self.java_home)
            .env("SPARK_LAUNCHER_OPTS", QUICK_START)
            .env("SPARK_DAEMON_JAVA_OPTS", QUICK_START)
            .env("PYSPARK_PYTHON", &self.python)
            .env("PYSPARK_DRIVER_PYTHON", &self.python)
            .current_dir(&self.scratch);
        command
    }

    /// Runs a helper of the fixture in a separate JVM, with Spark's jars, and returns its result line.
    ///
    /// # Errors
    /// When the helper fails.
    pub fn helper(&self, paths: &Paths, class: &str, arguments: &[&str]) -> Result<String> {
        let mut java = Command::new(self.java_home.join("bin/java"));
        java.arg("-cp").arg(format!(
            "{}:{}/jars/*",
            paths.fixture_jar().display(),
            self.home.display()
        ));
        java.arg(format!("io.smtt.fixture.{class}")).args(arguments);
        let log = self.scratch.join(format!("{class}.log"));
        let output = self.scratch.join(format!("{class}.out"));
        let mut running = Running::start_with_output(class, &mut java, &log, &output)?;
        finished(&mut running, START_LIMIT)
    }

    /// Starts a stand-alone master and workers; dropping the returned value stops them.
    ///
    /// # Errors
    /// When the master or a worker does not come up.
    pub fn standalone(
        &self,
        workers: usize,
        cores: usize,
        memory_mib: usize,
    ) -> Result<Standalone> {
        self.standalone_on(&vec!["127.0.0.1"; workers], cores, memory_mib)
    }

    /// As [`Self::standalone`], with a worker on each of these addresses of this machine, which Spark takes for hosts.
    ///
    /// # Errors
    /// When the master or a worker does not come up.
    pub fn standalone_on(
        &self,
        hosts: &[&str],
        cores: usize,
        memory_mib: usize,
    ) -> Result<Standalone> {
        let port = free_port()?;
        let url = format!("spark://127.0.0.1:{port}");
        let web = free_port()?;
        let mut command = self.program("spark-class");
        command.args([
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
        ]);
        command.args([
            "--port",
            &port.to_string(),
            "--webui-port",
            &web.to_string(),
        ]);
        let mut processes = vec![Running::start(
            "Spark master",
            &mut command,
            &self.scratch.join("master.log"),
        )?];
        wait_for("the Spark master answers", START_LIMIT, || {
            Ok(http::get(web, "/json/").ok())
        })?;
        for (number, host) in hosts.iter().enumerate() {
            let mut command = self.program("spark-class");
            command.args([
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                host,
                "--webui-port",
                "0",
            ]);
            command.args([
                "--cores",
                &cores.to_string(),
                "--memory",
                &format!("{memory_mib}m"),
            ]);
            command
                .arg("--work-dir")
                .arg(self.scratch.join(format!("work-{number}")))
                .arg(&url);
            processes.push(Running::start(
                "Spark worker",
                &mut command,
                &self.scratch.join(format!("worker-{number}.log")),
            )?);
        }
        wait_for("the Spark workers register", START_LIMIT, || {
            let state: Value = serde_json::from_str(&http::get(web, "/json/")?)?;
            Ok((state["aliveworkers"].as_u64() == Some(hosts.len() as u64)).then_some(()))
        })?;
        Ok(Standalone { url, processes })
    }
}

/// Spark's own history server; dropping this value stops it.
#[derive(Debug)]
pub struct HistoryServer {
    /// Port of its REST API.
    pub port: u16,
    /// The process.
    pub process: Running,
}

impl Spark {
    /// Starts Spark's own history server on a folder of event logs, with the tests' options for a quick start.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn history_server(&self, logs: &Path) -> Result<HistoryServer> {
        self.history_server_by(self.program("spark-class"), logs, "")
    }

    /// As [`Self::history_server`], with further options of the JVM, as `-Dspark.history.fs.update.interval=1s`.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn history_server_with(&self, logs: &Path, options: &str) -> Result<HistoryServer> {
        self.history_server_by(self.program("spark-class"), logs, options)
    }

    /// As [`Self::history_server`], as an administrator starts it.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn installed_history_server(&self, logs: &Path) -> Result<HistoryServer> {
        let mut command = self.program("spark-class");
        command.env_remove("SPARK_DAEMON_JAVA_OPTS");
        self.history_server_by(command, logs, "")
    }

    fn history_server_by(
        &self,
        mut command: Command,
        logs: &Path,
        options: &str,
    ) -> Result<HistoryServer> {
        let port = free_port()?;
        command
            .env(
                "SPARK_HISTORY_OPTS",
                format!(
                    "-Dspark.history.fs.logDirectory=file://{} -Dspark.history.ui.port={port} {options}",
                    logs.display()
                ),
            )
            .arg("org.apache.spark.deploy.history.HistoryServer");
        let log = self.scratch.join("history-server.log");
        let process = Running::start("Spark's history server", &mut command, &log)?;
        wait_for("Spark's history server answers", START_LIMIT, || {
            Ok(http::get(port, "/api/v1/version").ok())
        })?;
        Ok(HistoryServer { port, process })
    }
}

/// A stand-alone cluster; dropping this value stops it, workers first.
#[derive(Debug)]
pub struct Standalone {
    /// The master's URL, for `--master`.
    pub url: String,
    processes: Vec<Running>,
}

impl Standalone {
    /// Process ids of the workers, in their order; executors are their children.
    pub fn workers(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().skip(1).map(Running::pid)
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        while let Some(mut process) = self.processes.pop() {
            process.stop();
        }
    }
}

/// One application to submit.
#[derive(Clone, Debug)]
pub struct Application {
    master: String,
    conf: Vec<(String, String)>,
    driver_java_options: Vec<String>,
    both_compilers: bool,
    program: Vec<OsString>,
    /// Port of the web interface and REST API of the running application.
    pub ui_port: u16,
}

impl Application {
    /// A Java application from the fixture's jar.
    ///
    /// # Errors
    /// When the machine has no free port.
    pub fn java(paths: &Paths, master: &str, class: &str, arguments: &[&str]) -> Result<Self> {
        let jar = paths.fixture_jar();
        if !jar.is_file() {
            bail!("{} is not built: run `cargo xtask setup`", jar.display());
        }
        let mut program = vec![
            OsString::from("--class"),
            format!("io.smtt.fixture.{class}").into(),
            jar.into(),
        ];
        program.extend(arguments.iter().map(OsString::from));
        Self::new(master, program)
    }

    /// A Scala application of the fixture; only for the Spark version of the demo.
    ///
    /// # Errors
    /// When the application is not built, or the machine has no free port.
    pub fn scala(paths: &Paths, master: &str, class: &str, arguments: &[&str]) -> Result<Self> {
        let jar = paths.scala_jar();
        if !jar.is_file() {
            bail!(
                "{} is not built: run `cargo xtask experiment`",
                jar.display()
            );
        }
        let mut program = vec![
            OsString::from("--jars"),
            paths.fixture_jar().into(),
            "--class".into(),
            format!("io.smtt.fixture.{class}").into(),
            jar.into(),
        ];
        program.extend(arguments.iter().map(OsString::from));
        Self::new(master, program)
    }

    /// A Python application of the fixture.
    ///
    /// # Errors
    /// When the machine has no free port.
    pub fn python(paths: &Paths, master: &str, file: &str, arguments: &[&str]) -> Result<Self> {
        let mut program = vec![
            paths
                .root
                .join("tests/fixture/python")
                .join(file)
                .into_os_string(),
        ];
        program.extend(arguments.iter().map(OsString::from));
        Self::new(master, program)
    }

    fn new(master: &str, program: Vec<OsString>) -> Result<Self> {
        let ui_port = free_port()?;
        let mut application = Self {
            master: master.to_owned(),
            conf: Vec::new(),
            driver_java_options: Vec::new(),
            both_compilers: false,
            program,
            ui_port,
        };
        for (key, value) in [
            ("spark.ui.port", ui_port.to_string().as_str()),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            ("spark.driver.memory", "1g"),
            ("spark.executor.memory", "1g"),
            // Small shuffles use Spark's own sorters too, as large ones do.
            (
                "spark.serializer",
                "org.apache.spark.serializer.KryoSerializer",
            ),
            ("spark.shuffle.sort.bypassMergeThreshold", "1"),
        ] {
            application = application.conf(key, value);
        }
        // No job begins before all executors are there, however long one takes to start.
        if let Some(cores) = cores_of_local_cluster(master) {
            application = application
                .conf("spark.cores.max", &cores.to_string())
                .conf("spark.scheduler.minRegisteredResourcesRatio", "1")
                .conf("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s");
        }
        Ok(application)
    }

    /// Adds or replaces a setting.
    #[must_use]
    pub fn conf(mut self, key: &str, value: &str) -> Self {
        self.conf.retain(|(present, _)| present != key);
        self.conf.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds an option of the driver's JVM, which in local mode is the executor's.
    #[must_use]
    pub fn java_option(mut self, option: &str) -> Self {
        self.driver_java_options.push(option.to_owned());
        self
    }

    /// Executors with both of the JVM's compilers, as users have them, see [`Self::quick_executors`].
    #[must_use]
    pub const fn both_compilers(mut self) -> Self {
        self.both_compilers = true;
        self
    }

    /// Executors with the quick compiler only, which saves up to half of their CPU time: for tests, whose applications
    /// end before the better compiler pays for itself. Those that ask for [`Self::both_compilers`] have both.
    #[must_use]
    pub fn quick_executors(mut self) -> Self {
        const OPTIONS: &str = "spark.executor.extraJavaOptions";
        if self.both_compilers {
            return self;
        }
        if self.is_local() {
            return self.java_option(QUICK_COMPILER);
        }
        match self.conf.iter_mut().find(|(key, _)| key == OPTIONS) {
            Some((_, options)) => {
                *options = format!("{options} {QUICK_COMPILER}");
                self
            }
            None => self.conf(OPTIONS, QUICK_COMPILER),
        }
    }

    /// Whether the driver is the executor.
    fn is_local(&self) -> bool {
        self.master.starts_with("local[")
    }

    /// The two settings of an administrator that load the marker into every executor, as docs/SPARK.md gives them.
    #[must_use]
    pub fn with_marker(self, paths: &Paths) -> Self {
        let folder = paths.marker();
        self.with_marker_at(&folder.join("smtt-marker.jar"), "")
    }

    /// As [`Self::with_marker`], with another jar, and with arguments for the agent.
    #[must_use]
    pub fn with_marker_at(mut self, jar: &Path, agent_arguments: &str) -> Self {
        let jar = jar.display();
        let agent = if agent_arguments.is_empty() {
            format!("-javaagent:{jar}")
        } else {
            format!("-javaagent:{jar}={agent_arguments}")
        };
        if self.is_local() {
            self.driver_java_options.push(agent);
        } else {
            self = self
                .conf("spark.executor.defaultJavaOptions", &agent)
                .conf("spark.driver.extraClassPath", &jar.to_string());
        }
        self.conf("spark.plugins.defaultList", "io.smtt.marker.SmttPlugin")
    }

    /// The marker as Spark's own cargo: no worker needs its jar, and the plugin attaches the agent. The option stands for
    /// the library that the daemon's installation puts under `/usr/lib/smtt`.
    #[must_use]
    pub fn with_marker_by_spark(mut self, paths: &Paths) -> Self {
        let folder = paths.marker();
        let installed = folder.join("libsmtt_marker.so");
        let option = format!("-Dsmtt.library={}", installed.display());
        if self.is_local() {
            self.driver_java_options.push(option);
        } else {
            self = self.conf("spark.executor.defaultJavaOptions", &option);
        }
        self.conf(
            "spark.jars",
            &folder.join("smtt-marker.jar").display().to_string(),
        )
        .conf("spark.plugins.defaultList", "io.smtt.marker.SmttPlugin")
    }

    /// Submits the application.
    ///
    /// # Errors
    /// When `spark-submit` cannot be started.
    pub fn submit(&self, spark: &Spark, name: &str) -> Result<Submitted> {
        let mut command = spark.program("spark-submit");
        command.args(["--master", &self.master]);
        for (key, value) in &self.conf {
            command.arg("--conf").arg(format!("{key}={value}"));
        }
        let mut options = self.driver_java_options.clone();
        if !self.is_local() {
            options.push(QUICK_START.to_owned());
        }
        if !options.is_empty() {
            command.arg("--driver-java-options").arg(options.join(" "));
        }
        command.args(&self.program);
        let log = spark.scratch.join(format!("{name}.log"));
        let output = spark.scratch.join(format!("{name}.out"));
        let running = Running::start_with_output(name, &mut command, &log, &output)?;
        Ok(Submitted {
            running,
            ui_port: self.ui_port,
            id: OnceLock::new(),
        })
    }
}

/// Cores of all executors of `local-cluster[EXECUTORS,CORES,MIB]`; Spark expects none without a limit.
fn cores_of_local_cluster(master: &str) -> Option<usize> {
    let (executors, rest) = master.strip_prefix("local-cluster[")?.split_once(',')?;
    let cores: usize = rest.split_once(',')?.0.parse().ok()?;
    Some(executors.parse::<usize>().ok()? * cores)
}

/// A submitted application; dropping this value stops it.
#[derive(Debug)]
pub struct Submitted {
    /// The `spark-submit` process, which becomes the driver.
    pub running: Running,
    /// Port of the web interface and REST API of the running application.
    pub ui_port: u16,
    /// The application's id, once it is known: each question to Spark makes its JVM work, which tests measure.
    id: OnceLock<String>,
}

impl Submitted {
    /// Waits for the end of the application and returns its result line.
    ///
    /// # Errors
    /// When the application fails, prints no result, or takes longer than `limit`.
    pub fn result(&mut self, limit: Duration) -> Result<String> {
        finished(&mut self.running, limit)
    }

    /// Queries Spark's REST API about the running application: `path` is relative to it, for example `stages`.
    ///
    /// # Errors
    /// When the API does not answer.
    pub fn rest(&self, path: &str) -> Result<Value> {
        let id = self.application_id()?;
        let text = http::get(self.ui_port, &format!("/api/v1/applications/{id}/{path}"))?;
        serde_json::from_str(&text).context("Spark's REST API did not answer in JSON")
    }

    /// The application's id, from Spark's REST API.
    ///
    /// # Errors
    /// When the API does not answer (yet, or any more).
    pub fn application_id(&self) -> Result<String> {
        if let Some(id) = self.id.get() {
            return Ok(id.clone());
        }
        let applications: Value =
            serde_json::from_str(&http::get(self.ui_port, "/api/v1/applications")?)?;
        let id = applications[0]["id"].as_str();
        let id = id.context("Spark's REST API lists no application")?;
        Ok(self.id.get_or_init(|| id.to_owned()).clone())
    }
}

/// Waits for the end of an application and returns its result line.
///
/// # Errors
/// When the application fails, prints no result, or takes longer than `limit`.
pub fn finished(running: &mut Running, limit: Duration) -> Result<String> {
    let status = running.wait(limit, || Ok(()))?;
    if !status.success() {
        bail!("the application failed ({status}){}", running.hint());
    }
    result_line(running.output()).with_context(|| format!("its log is {}", running.log().display()))
}

/// The line of an application's output that starts with `RESULT`.
///
/// # Errors
/// When the output has no such line.
pub fn result_line(log: &Path) -> Result<String> {
    let text = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find(|line| line.starts_with("RESULT "));
    Ok(line
        .with_context(|| {
            format!(
                "the application printed no result{}",
                crate::process::hint(log)
            )
        })?
        .to_owned())
}
