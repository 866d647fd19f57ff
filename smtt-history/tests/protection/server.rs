//! The program, its files, and curl.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_smtt-history");

fn run(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn openssl(folder: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    let output = run(command.args(arguments.split(' ')).current_dir(folder));
    assert!(output.status.success(), "{arguments}: {output:?}");
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Makes an authority, and a certificate of it for 127.0.0.1 with its key.
pub fn certificates(folder: &Path, authority: &str, name: &str) {
    openssl(
        folder,
        &format!(
            "req -x509 {KEY} -keyout {authority}.key -out {authority}.crt -days 30 -subj /CN={authority}"
        ),
    );
    request(folder, name);
    sign(folder, authority, name, 30);
}

/// Makes a key, and the request for its certificate.
pub fn request(folder: &Path, name: &str) {
    openssl(
        folder,
        &format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
    );
}

/// Signs a request. The certificate ends in so many days, or ended so many days ago.
pub fn sign(folder: &Path, authority: &str, name: &str, days: i32) {
    let text = "subjectAltName=IP:127.0.0.1\n";
    fs::write(folder.join("extensions"), text).expect("writes");
    openssl(
        folder,
        &format!(
            "x509 -req -in {name}.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -out {name}.crt -days {days} -extfile extensions"
        ),
    );
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("sets the mode");
}

/// A file that only its owner may read.
pub fn secret(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).expect("writes");
    set_mode(&path, 0o600);
}

/// Imports an application with a job, a stage of 300 tasks, a cached RDD and a query into `<folder>/store`.
pub fn store(folder: &Path) {
    let rdd = json!({"RDD ID": 7, "Name": "cached", "Storage Level": {"Use Memory": true, "Replication": 1},
        "Number of Partitions": 1});
    let stage = json!({"Stage ID": 0, "Stage Attempt ID": 0, "Stage Name": "count at App.scala:3", "Details": "d",
        "Number of Tasks": 300, "Submission Time": 2000, "RDD Info": [rdd], "Accumulables": []});
    let mut ended = stage.clone();
    ended["Completion Time"] = json!(9000);
    let mut lines = vec![
        json!({"Event": "SparkListenerApplicationStart", "App Name": "payroll", "App ID": "app-1", "Timestamp": 1000, "User": "u"}),
        json!({"Event": "SparkListenerEnvironmentUpdate", "JVM Information": {}, "Hadoop Properties": {}, "System Properties": {},
            "Metrics Properties": {}, "Classpath Entries": {}, "Spark Properties": {"spark.app.name": "payroll"}}),
        json!({"Event": "SparkListenerExecutorAdded", "Timestamp": 1100, "Executor ID": "0",
            "Executor Info": {"Host": "h", "Total Cores": 4}}),
        json!({"Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart", "executionId": 0, "description": "count",
            "details": "", "physicalPlanDescription": "p", "time": 1200,
            "sparkPlanInfo": {"nodeName": "Scan", "simpleString": "Scan", "children": [], "metadata": {}, "metrics": []}}),
        json!({"Event": "SparkListenerJobStart", "Job ID": 0, "Submission Time": 2000, "Stage Infos": [stage], "Stage IDs": [0],
            "Properties": {}}),
        json!({"Event": "SparkListenerStageSubmitted", "Stage Info": stage, "Properties": {}}),
        json!({"Event": "SparkListenerBlockUpdated", "Block Updated Info": {"Block Manager ID": {"Executor ID": "0", "Host": "h", "Port": 1},
            "Block ID": "rdd_7_0", "Storage Level": {"Use Memory": true, "Replication": 1}, "Memory Size": 4096, "Disk Size": 0}}),
    ];
    for task in 0..300 {
        let info = |finish: i64| {
            json!({"Task ID": task, "Index": task, "Attempt": 0, "Partition ID": task, "Launch Time": 2000 + task * 20,
                "Executor ID": "0", "Host": "h", "Locality": "PROCESS_LOCAL", "Speculative": false, "Getting Result Time": 0,
                "Finish Time": finish, "Failed": false, "Killed": false, "Accumulables": []})
        };
        lines.push(json!({"Event": "SparkListenerTaskStart", "Stage ID": 0, "Stage Attempt ID": 0, "Task Info": info(0)}));
        lines.push(json!({"Event": "SparkListenerTaskEnd", "Stage ID": 0, "Stage Attempt ID": 0, "Task Type": "ResultTask",
            "Task End Reason": {"Reason": "Success"}, "Task Info": info(2060 + task * 20),
            "Task Metrics": {"Executor Run Time": 50 + task % 7, "Executor CPU Time": 40_000_000 + task * 1013}}));
    }
    lines.extend([
        json!({"Event": "SparkListenerStageCompleted", "Stage Info": ended}),
        json!({"Event": "SparkListenerJobEnd", "Job ID": 0, "Completion Time": 9000, "Job Result": {"Result": "JobSucceeded"}}),
        json!({"Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd", "executionId": 0, "time": 9100}),
        json!({"Event": "SparkListenerApplicationEnd", "Timestamp": 9200}),
    ]);
    let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
    fs::write(folder.join("log"), lines.join("\n")).expect("writes");
    let mut import = Command::new(PROGRAM);
    let output = run(import
        .args(["import", "--store", "store", "log"])
        .current_dir(folder));
    assert!(output.status.success(), "{output:?}");
}

/// A server that runs until it is dropped.
pub struct Server {
    process: Child,
    folder: PathBuf,
    /// What it prints first.
    pub url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An answer as curl saw it.
pub struct Answer {
    pub status: u16,
    /// Head in small letters.
    pub head: String,
    pub bytes: Vec<u8>,
    /// The same as text.
    pub body: String,
    /// Connections that curl made for it.
    pub connections: u32,
}

impl Server {
    /// Serves `<folder>/store` on a port of the loopback interface.
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new(PROGRAM)
            .args(["serve", "--store", "store", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let output = BufReader::new(process.stdout.take().expect("has an output"));
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || tell.send(output.lines().next()));
        let server = |url| Self {
            process,
            folder: folder.to_owned(),
            url,
        };
        match said.recv_timeout(Duration::from_secs(60)) {
            Ok(Some(Ok(url))) => server(url),
            other => {
                // Dropped, so that the process ends.
                drop(server(String::new()));
                panic!("it does not say where it listens: {other:?}");
            }
        }
    }

    pub fn port(&self) -> u16 {
        let port = self.url.trim_end_matches('/').rsplit(':').next();
        port.and_then(|port| port.parse().ok()).expect("has a port")
    }

    /// Answers to the paths, by one curl.
    pub fn ask_all(&self, paths: &[&str], arguments: &[&str]) -> Vec<Answer> {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut lines = String::new();
        for (number, path) in paths.iter().enumerate() {
            if number > 0 {
                lines.push_str("next\n");
            }
            let (url, folder) = (&self.url, folder.path().display());
            lines.push_str(&format!(
                "url = \"{url}{path}\"\noutput = \"{folder}/{number}.body\"\ndump-header = \"{folder}/{number}.head\"\n\
                 silent\nshow-error\nmax-time = 60\nwrite-out = \"%{{http_code}} %{{num_connects}}\\n\"\n"
            ));
            for words in arguments.chunks(2) {
                let name = words[0].trim_start_matches('-');
                match words.get(1) {
                    Some(value) => lines.push_str(&format!("{name} = \"{value}\"\n")),
                    None => lines.push_str(&format!("{name}\n")),
                }
            }
        }
        secret(folder.path(), "config", &lines);
        let mut command = Command::new("curl");
        command.arg("--config").arg(folder.path().join("config"));
        let output = run(command.current_dir(&self.folder));
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let figures: Vec<&str> = said.lines().collect();
        assert_eq!(figures.len(), paths.len(), "{said}");
        let answer = |(number, figures): (usize, &&str)| {
            let (status, connections) = figures.split_once(' ').expect("has two figures");
            let file = |kind: &str| folder.path().join(format!("{number}.{kind}"));
            // curl makes no file for a body without bytes.
            let bytes = fs::read(file("body")).unwrap_or_default();
            Answer {
                status: status.parse().expect("is a status"),
                head: fs::read_to_string(file("head"))
                    .expect("has a head")
                    .to_lowercase(),
                body: String::from_utf8_lossy(&bytes).into_owned(),
                bytes,
                connections: connections.parse().expect("is a number"),
            }
        };
        figures.iter().enumerate().map(answer).collect()
    }
}

pub fn curl(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "60"]);
    run(command.args(arguments).current_dir(folder))
}

/// Exit code and words of a server that does not start. One that starts is ended after a minute.
pub fn refused(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("timeout");
    command.args(["60", PROGRAM, "serve", "--store", "store"]);
    let output = run(command.args(arguments).current_dir(folder));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// The bytes that gzip unpacks.
pub fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("makes a file");
    file.as_file().write_all(bytes).expect("writes");
    let mut command = Command::new("gzip");
    let input = fs::File::open(file.path()).expect("opens");
    let output = run(command.args(["-d", "-c"]).stdin(input));
    assert!(output.status.success(), "{output:?}");
    output.stdout
}
