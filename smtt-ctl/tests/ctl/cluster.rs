//! `--cluster`: several real servers of the daemon on ports of their own. Each daemon's own answer on its socket is the
//! witness of the sums.

use std::sync::Arc;

use smtt_daemon::postmortem::keeper::Keeper;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use smtt_model::decode::{Fact, StageDescribed, TaskStarted};

use super::golden::death;
use super::workers::{Workers, dead, facts, rows, secret, sum, text, with_answer};

/// A row without these fields.
fn without(row: &Value, fields: &[&str]) -> Value {
    let mut row = row.clone();
    for field in fields {
        row.as_object_mut().expect("a row").shift_remove(*field);
    }
    row
}

/// The rows of a worker in an answer of the cluster, without these fields.
fn of_worker(all: &Value, name: &str, fields: &[&str]) -> Vec<Value> {
    rows(&all["rows"])
        .iter()
        .filter(|row| row["worker"] == name)
        .map(|row| without(row, fields))
        .collect()
}

#[test]
fn listings_of_a_cluster_are_those_of_its_workers() {
    let workers = Workers::start();
    for listing in [
        "executors",
        "stages",
        "tasks",
        "rdds",
        "jobs --per-worker",
        "queries --per-worker",
        "blocks",
        "memory",
        "pages",
    ] {
        let arguments: Vec<&str> = listing.split(' ').chain(["--json"]).collect();
        let listing = arguments[0];
        let all = workers.json(&arguments);
        assert_eq!(all["complete"], true, "{listing}");
        for (daemon, port) in workers.daemons.iter().zip(&workers.ports) {
            let own = daemon.json(&[listing, "--json"]);
            let name = port.address.to_string();
            // The age of a block goes on between two answers.
            let of_worker = of_worker(&all, &name, &["worker", "age_ns"]);
            let own: Vec<Value> = rows(&own)
                .iter()
                .map(|row| without(row, &["age_ns"]))
                .collect();
            assert_eq!(of_worker, own, "{listing} of {name}");
        }
        assert_eq!(
            all["rows_total"].as_u64(),
            Some(rows(&all["rows"]).len() as u64),
            "{listing}"
        );
        for row in rows(&all["workers"]) {
            assert_eq!(row["error"], Value::Null, "{row}");
        }
        assert_eq!(rows(&all["workers"]).len(), 3);
    }
    let all = workers.json(&["executors", "--json"]);
    assert_eq!(all["summary"]["executors"], 3);
    let parts: Vec<Value> = workers
        .daemons
        .iter()
        .map(|daemon| daemon.json(&["executors", "--json"])[0].clone())
        .collect();
    assert_eq!(
        all["summary"]["page_faults"].as_u64(),
        Some(sum(&parts, "page_faults"))
    );
    assert!(sum(&parts, "page_faults") > 0);
}

#[test]
fn a_name_and_files_of_prometheus_lead_to_the_same_workers() {
    let workers = Workers::start();
    let arguments = ["executors", "--json"];
    let by = |spec: &str| -> Value {
        let output = workers.ctl_by(spec, &arguments);
        assert!(output.status.success(), "{spec}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let faults = |answer: &Value| sum(rows(&answer["rows"]), "page_faults");
    let all = workers.json(&arguments);
    // As file_sd_configs and a scrape configuration's static_configs have them.
    let targets: Vec<String> = workers
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    let json = json!([
        {"targets": &targets[..1], "labels": {"cluster": "a"}},
        {"targets": &targets[1..]},
    ]);
    let yaml = format!("- targets: {targets:?}\n  labels: {{cluster: a}}\n");
    for (name, text) in [("targets.json", json.to_string()), ("targets.yml", yaml)] {
        let file = secret(workers.folder.path(), name, &text);
        let answer = by(&file.display().to_string());
        assert_eq!(answer["rows_total"], 3, "{name}");
        assert_eq!(faults(&answer), faults(&all), "{name}");
    }
    // The resolver of this machine has the name.
    let port = workers.ports[1].address.port();
    let answer = by(&format!("dns4:localhost:{port}"));
    let own = workers.daemons[1].json(&arguments);
    assert_eq!(rows(&answer["workers"])[0]["host"], "127.0.0.1");
    assert_eq!(rows(&answer["rows"]).len(), rows(&own).len());
    assert_eq!(faults(&answer), sum(rows(&own), "page_faults"));
    let unknown = workers.ctl_by("dns:worker.invalid:1", &arguments);
    assert!(text(&unknown.stderr).contains("the name has no address"));
}

/// Facts of a worker whose tasks worked for job 5 of query 2, in stage 3 and, on the second worker, in stage 4.
pub(super) fn with_jobs(index: u64) -> Vec<Fact> {
    let mut facts = facts(index);
    let described = |stage_id: u32| StageDescribed {
        stage_id,
        name: format!("map {stage_id}"),
        job_id: Some(5),
        sql_execution_id: Some(2),
        sql_description: format!("SELECT {stage_id}"),
        ..StageDescribed::default()
    };
    for fact in &mut facts {
        match fact {
            Fact::StageDescribed(said) => *said = described(said.stage_id),
            Fact::TaskEnded(end) => end.execution_memory_peak_bytes += index * 100,
            _ => {}
        }
    }
    if index == 1 {
        facts.push(Fact::StageDescribed(described(4)));
        facts.push(Fact::TaskStarted(TaskStarted {
            task_attempt_id: 7,
            stage_id: 4,
            ..TaskStarted::default()
        }));
    }
    facts
}

#[test]
fn jobs_and_queries_are_a_row_each_over_all_workers() {
    let workers = Workers::of(&(0..3).map(with_jobs).collect::<Vec<_>>());
    for (listing, id, value) in [("jobs", "job_id", 5), ("queries", "sql_execution_id", 2)] {
        let all = workers.json(&[listing, "--json"]);
        assert_eq!(
            (&all["complete"], &all["rows_total"]),
            (&json!(true), &json!(2))
        );
        // Witness: the rows of each daemon on its own socket.
        let own: Vec<Value> = workers
            .daemons
            .iter()
            .map(|daemon| daemon.json(&[listing, "--json"])[0].clone())
            .collect();
        let of_app = |app: &str| {
            let found = rows(&all["rows"])
                .iter()
                .find(|row| row["application_id"] == app);
            found.unwrap_or_else(|| panic!("{app} in {all}")).clone()
        };
        for (app, parts) in [
            ("app-20260101120000-0001", &own[..2]),
            ("app-20260101120000-0002", &own[2..]),
        ] {
            let row = of_app(app);
            assert_eq!(row[id], value, "{row}");
            assert_eq!(row["workers"], parts.len(), "{row}");
            for field in [
                "executors",
                "tasks_running",
                "tasks_succeeded",
                "task_time_ns",
                "page_faults",
                "page_faults_read",
                "page_faults_write",
                "page_faults_major",
                "used_tasks",
                "used_partial_tasks",
            ] {
                assert_eq!(
                    row[field].as_u64(),
                    Some(sum(parts, field)),
                    "{field}: {row}"
                );
            }
            let peak = |part: &Value| part["execution_memory_peak_bytes"].as_u64();
            assert_eq!(
                row["execution_memory_peak_bytes"].as_u64(),
                parts.iter().filter_map(peak).max(),
                "a peak is no sum"
            );
            assert_eq!(row["lower_bounds"], json!([]), "{row}");
        }
        let both = of_app("app-20260101120000-0001");
        assert_eq!((&both["jobs"], &both["stages"]), (&json!(1), &json!(2)));
        assert_eq!(both["name"], "SELECT 4", "the last stage names the row");
        assert!(sum(&own[..2], "page_faults") > 0);
        assert_eq!(
            sum(rows(&all["rows"]), "page_faults"),
            all["summary"]["page_faults_attributed"]
                .as_u64()
                .expect("counted"),
        );
        let sorted = workers.json(&[listing, "--json", "--sort", "peak", "--limit", "1"]);
        assert_eq!(
            (rows(&sorted["rows"]).len(), &sorted["rows_total"]),
            (1, &json!(2))
        );
        assert_eq!(
            sorted["rows"][0]["execution_memory_peak_bytes"],
            own[2]["execution_memory_peak_bytes"]
        );
    }
    let none = workers.ctl(&workers.addresses(), &["jobs", "--app", "nowhere"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert!(text(&none.stderr).contains("no jobs match --app nowhere; there are"));
}

#[test]
fn sums_without_a_worker_say_so_and_an_older_worker_leaves_out_what_it_cannot_say() {
    let workers = Workers::of(&(0..2).map(with_jobs).collect::<Vec<_>>());
    // The answer of a daemon that does not name stages and does not know the time of tasks on a CPU.
    let mut old = workers.daemons[0].json(&["jobs", "--json"]);
    old[0].as_object_mut().expect("a row").remove("stage_ids");
    let summary = serde_json::to_value(smtt_model::rows::Summary::default()).expect("JSON");
    let old = json!({"rows": old, "rows_total": 1, "summary": summary});
    let mut addresses = workers.addresses();
    addresses.push(with_answer("200 OK", old.to_string()));
    let dead = dead();
    addresses.push(dead);
    let json = workers.ctl(&addresses, &["jobs", "--json"]);
    assert_eq!(json.status.code(), Some(3), "{json:?}");
    let all: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(all["complete"], false);
    let row = &all["rows"][0];
    assert_eq!((&row["workers"], &row["stages"]), (&json!(3), &Value::Null));
    assert_eq!(row["jobs"], 1);
    let table = workers.ctl(&addresses, &["jobs"]);
    let (shown, said) = (text(&table.stdout), text(&table.stderr));
    assert!(
        shown.contains("incomplete: 1 of 4 workers did not answer and are in no sum\n"),
        "{shown}"
    );
    assert!(
        said.contains(&format!("worker {dead}: cannot connect")),
        "{said}"
    );
    let groups = workers.ctl(&addresses, &["rdds", "--by", "rdd"]);
    assert!(
        text(&groups.stdout).contains("incomplete: 2 of 4 workers"),
        "{groups:?}"
    );
    let whole = workers.ctl(&workers.addresses(), &["jobs"]);
    assert!(!text(&whole.stdout).contains("incomplete"), "{whole:?}");
}

#[test]
fn groups_add_up_over_workers() {
    let workers = Workers::start();
    let all = workers.json(&["rdds", "--by", "rdd", "--json"]);
    // Witness: the single rows of each worker, by application and RDD.
    let mut parts: BTreeMap<(String, u64), Vec<Value>> = BTreeMap::new();
    for daemon in &workers.daemons {
        for row in rows(&daemon.json(&["rdds", "--json"])) {
            let app = row["application_id"].as_str().expect("an id").to_owned();
            if let Some(id) = row["rdd_id"].as_u64() {
                parts.entry((app, id)).or_default().push(row.clone());
            }
        }
    }
    let mut seen = 0;
    for ((app, id), parts) in &parts {
        let begin = format!("{id} ");
        let group = rows(&all["rows"])
            .iter()
            .find(|row| {
                row["application_id"] == app.as_str()
                    && row["group"]
                        .as_str()
                        .is_some_and(|group| group.starts_with(&begin))
            })
            .unwrap_or_else(|| panic!("{app} {id} in {all}"));
        assert_eq!(
            group["executors"].as_u64(),
            Some(parts.len() as u64),
            "{group}"
        );
        for field in [
            "page_faults",
            "storage_memory_bytes",
            "execution_memory_bytes",
        ] {
            assert_eq!(group[field].as_u64(), Some(sum(parts, field)), "{field}");
        }
        seen += 1;
    }
    assert_eq!(seen, 4, "two RDDs of each of two applications");
    let faults = sum(rows(&all["rows"]), "page_faults");
    let whole = &all["summary"];
    assert_eq!(
        Some(faults),
        whole["page_faults"]
            .as_u64()
            .zip(whole["page_faults_unattributed"].as_u64())
            .map(|(all, without)| all - without),
        "{whole}"
    );
}

#[test]
fn rows_are_in_one_order_and_a_limit_is_of_all_workers() {
    let workers = Workers::start();
    let all = workers.json(&["blocks", "--json", "--sort", "size", "--limit", "2"]);
    let sizes: Vec<u64> = rows(&all["rows"])
        .iter()
        .filter_map(|row| row["size_bytes"].as_u64())
        .collect();
    assert_eq!(sizes, [4 << 20, 2 << 20]);
    assert_eq!(all["rows_total"], 3);
    let all = workers.json(&["executors", "--json", "--sort", "host:desc"]);
    let names: Vec<&str> = rows(&all["rows"])
        .iter()
        .filter_map(|row| row["worker"].as_str())
        .collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.reverse();
    assert_eq!((names.len(), &names), (3, &sorted));
    let output = workers.ctl(&workers.addresses(), &["blocks", "--limit", "2"]);
    let table = text(&output.stdout);
    assert!(table.contains("\nHOST "), "{table}");
    assert!(table.contains("hidden: 1 of 3 rows"), "{table}");
    // A condition that only one worker fulfils, and one that none does.
    let only = workers.json(&["rdds", "--json", "--app", "app-20260101120000-0002"]);
    for row in rows(&only["rows"]) {
        assert_eq!(row["worker"], workers.ports[2].address.to_string().as_str());
    }
    assert!(!rows(&only["rows"]).is_empty());
    let none = workers.ctl(&workers.addresses(), &["rdds", "--app", "nowhere"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    let said = text(&none.stderr);
    assert!(
        said.contains("no RDDs match --app nowhere; there are app-20260101120000-0001"),
        "{said}"
    );
    // The question is wrong, not the workers.
    let wrong = workers.ctl(&workers.addresses(), &["rdds", "--sort", "size"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let said = text(&wrong.stderr);
    assert!(said.contains("cannot sort by \"size\""), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn status_advice_and_deaths_are_of_all_workers() {
    let workers = Workers::start();
    let status = workers.json(&["status", "--json"]);
    assert_eq!(status["summary"]["executors"], 3);
    for (worker, daemon) in rows(&status["workers"]).iter().zip(&workers.daemons) {
        let own = daemon.json(&["status", "--json"]);
        for field in ["version", "ready", "probes", "summary"] {
            assert_eq!(worker["status"][field], own[field], "{field}");
        }
    }
    let table = workers.ctl(&workers.addresses(), &["status"]);
    let table = text(&table.stdout);
    assert!(table.contains("3 workers, 3 executors"), "{table}");
    let advice = workers.json(&["advise", "--json"]);
    let applications = rows(&advice["applications"]);
    assert_eq!(applications.len(), 3);
    for (daemon, port) in workers.daemons.iter().zip(&workers.ports) {
        let own = daemon.json(&["advise", "--json"]);
        let name = port.address.to_string();
        let of_worker = applications
            .iter()
            .find(|application| application["worker"] == name.as_str())
            .expect("a worker");
        assert_eq!(
            of_worker["application_id"],
            own["applications"][0]["application_id"]
        );
        assert_eq!(of_worker["findings"], own["applications"][0]["findings"]);
    }
    let deaths = workers.json(&["postmortem", "--json"]);
    assert_eq!(deaths["rows"], json!([]));
    assert_eq!(rows(&deaths["workers"]).len(), 3);
    let mut addresses = workers.addresses();
    for (dead, complete) in [(None, true), (Some(dead()), false)] {
        addresses.extend(dead);
        for command in ["status", "advise", "postmortem"] {
            let output = workers.ctl(&addresses, &[command, "--json"]);
            let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(answer["complete"], complete, "{command}");
        }
    }
}

#[test]
fn stages_of_many_workers_stand_for_themselves_in_quantiles_and_peaks() {
    let workers = Workers::start();
    let dead = dead();
    let mut addresses = workers.addresses();
    addresses.push(dead);
    for form in ["--summary", "--peaks"] {
        let output = workers.ctl(&addresses, &["stages", form, "--json"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(all["complete"], false);
        for (daemon, port) in workers.daemons.iter().zip(&workers.ports) {
            // Witness: what each daemon says on its own socket.
            let own = daemon.json(&["stages", form, "--json"]);
            let name = port.address.to_string();
            let of_worker = of_worker(&all, &name, &["worker"]);
            assert_eq!(of_worker.len(), rows(&own).len(), "{all}");
            for row in rows(&own) {
                let found = of_worker
                    .iter()
                    .find(|of| of["stage_id"] == row["stage_id"]);
                let found = found.unwrap_or_else(|| panic!("{row} in {of_worker:?}"));
                for (field, value) in row.as_object().expect("a row") {
                    // An open task's time goes on.
                    if !field.ends_with("_ns") && field != "worker" {
                        assert_eq!(&found[field], value, "{field}");
                    }
                }
            }
        }
        let output = workers.ctl(&addresses, &["stages", form]);
        let said = text(&output.stdout);
        for port in &workers.ports {
            assert!(said.contains(&format!(" on {}", port.address)), "{said}");
        }
        assert!(text(&output.stderr).contains(&dead.to_string()));
    }
}

#[test]
fn the_page_of_a_death_comes_from_the_worker_where_it_was() {
    let workers = Workers::start();
    for (daemon, deaths) in
        workers
            .daemons
            .iter()
            .zip([&[("7", 10)][..], &[("7", 30), ("8", 5)], &[]])
    {
        let keeper = Keeper::new(None);
        for (executor, second) in deaths {
            keeper.add(death(executor, *second));
        }
        daemon.shared.set_keeper(Arc::new(keeper));
    }
    let name = workers.ports[1].address.to_string();
    // Each worker's claim stands beside that of the other.
    let output = workers.ctl(&workers.addresses(), &["postmortem", "7"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("on 2 workers"), "{said}");
    assert!(said.contains(&format!("7@{name}")), "{said}");
    let named = format!("7@{name}");
    let last = workers.json(&["postmortem", &named, "--json"]);
    assert_eq!(
        (&last["id"], &last["worker"]),
        (&json!("030-7"), &json!(name))
    );
    // Witness: the daemon's own page.
    let own = workers.daemons[1].json(&["postmortem", "7", "--json"]);
    assert_eq!(last["samples"], own["samples"]);
    assert_eq!(last["advice"], own["advice"]);
    // By the id of a report, the older one on the other worker.
    let output = workers.ctl(&workers.addresses(), &["postmortem", "010-7"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    assert!(
        said.contains("heap_exhausted") && said.contains(&workers.ports[0].address.to_string()),
        "{said}"
    );
    let output = workers.ctl(&workers.addresses(), &["postmortem", "7@192.0.2.1:1"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = workers.ctl(&workers.addresses(), &["postmortem", "99"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("3 others have"), "{output:?}");
}

#[test]
fn commands_of_one_worker_say_so_in_a_line() {
    let workers = Workers::start();
    for command in [
        &["doctor"][..],
        &["trace"],
        &["task", "7"],
        &["export", "--job-trace", "app"],
        &["calibrate"],
        &["pmu"],
    ] {
        let output = workers.ctl(&workers.addresses(), command);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains("asks one worker"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}
