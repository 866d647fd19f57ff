//! Reports of made applications: names stay text, addresses lead within the file, and nothing is loaded.

use super::super::tests::{HOSTILE, Site, log};
use super::*;
use crate::log::Bounds;
use crate::made::{Made, Stage, Task};

fn settings(site: &Site) -> Settings {
    Settings {
        store: site.store(),
        event_logs: None,
        cache_bytes: 1,
        bounds: Bounds::default(),
        bucket: None,
    }
}

fn of(text: &str, id: &str) -> String {
    let site = Site::new(&[text.to_owned()]);
    let app = App::open(&site.store().join(id)).expect("opens");
    let report = report(settings(&site), &app, None).expect("is a report");
    assert_eq!(report.left_out, Vec::<String>::new());
    report.page
}

#[test]
fn a_report_has_all_parts_and_leads_nowhere_else() {
    let tasks = vec![Task::new(2_000, 1_000_000); 64];
    let stages = (0..3).map(|_| Stage::new("map", tasks.clone()));
    let text = of(&Made::new("app-1", stages.collect()).log().0, "app-1");
    for id in [
        "timeline",
        "findings",
        "jobs",
        "stages",
        "tasks",
        "executors",
        "rdds",
        "stages/2/0",
        "timeline/memory",
    ] {
        assert!(
            text.contains(&format!("<details class=\"part\" id=\"p/{id}\"")),
            "{id} is missing"
        );
    }
    // A job's stages, a stage's page, and a place within a page.
    assert!(text.contains("<a href=\"#p/stages/2/0\">"), "no stage");
    assert!(
        text.contains("<a href=\"#p/stages\">"),
        "no stages of a job"
    );
    for (number, (address, _)) in text.match_indices(" href=\"").enumerate() {
        let to = &text[address + 7..];
        assert!(to.starts_with('#'), "address {number}: {}", &to[..60]);
    }
    for load in [
        " src=",
        "url(",
        "@import",
        "<link",
        "<form class=\"filters\" method",
        "../",
    ] {
        let at = text.find(load);
        assert!(
            at.is_none(),
            "{load}: {:?}",
            at.map(|at| &text[at.saturating_sub(80)..at + 80])
        );
    }
    let ids: Vec<&str> = text
        .split(" id=\"")
        .skip(1)
        .filter_map(|it| it.split('"').next())
        .collect();
    let different: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), different.len(), "ids come twice: {ids:?}");
}

#[test]
fn names_are_text_in_the_page_and_in_its_data() {
    let text = of(&log("app-1", ""), "app-1");
    let (_, after) = text.split_once("id=\"report-data\">").expect("has data");
    let (data, _) = after.split_once("</script>").expect("ends");
    let data: Value = serde_json::from_str(data).expect("is JSON");
    assert_eq!(data["timeline"]["tasks"]["id"], serde_json::json!([7]));
    let ran: String = serde_json::from_str(&format!("\"{HOSTILE}\"")).expect("is JSON");
    assert_eq!(data["timeline"]["executors"][0]["id"], ran);
    let lanes = serde_json::json!({"executor": [0], "core": [0]});
    assert_eq!(data["timeline"]["lanes"], lanes);
    // Data, the script, and no other.
    assert_eq!(text.matches("<script").count(), 2);
    assert_eq!(text.matches("</script>").count(), 2);
    let (before, rest) = text.split_once("id=\"report-data\">").expect("has data");
    let (_, after) = rest.split_once("</script>").expect("ends");
    for markup in ["style=\"", " onclick", "\" onx"] {
        assert!(
            !before.contains(markup) && !after.contains(markup),
            "{markup}"
        );
    }
    assert!(text.contains("was running when this was written"));
}

#[test]
fn the_shortest_tasks_are_left_out_first() {
    let tasks = (1..=50).map(|ms| Task::new(ms * 100, 1)).collect();
    let site = Site::new(&[Made::new("app-1", vec![Stage::new("map", tasks)]).log().0]);
    let app = App::open(&site.store().join("app-1")).expect("opens");
    let model = Model::read(&app).expect("reads");
    let json = |most: usize| serde_json::to_value(Whole::of(&model, most)).expect("is JSON");
    let all = json(50);
    assert_eq!(
        (&all["leftOut"], all["tasks"]["ms"].as_array().map(Vec::len)),
        (&0.into(), Some(50))
    );
    let few = json(10);
    let lengths: Vec<u64> =
        serde_json::from_value(few["tasks"]["ms"].clone()).expect("are numbers");
    assert_eq!((lengths.len(), &few["leftOut"]), (10, &40.into()));
    assert!(lengths.iter().all(|ms| *ms > 4_000), "{lengths:?}");
}

/// An application with one executor whose tasks all run at a time, each in a stage of its own if so asked.
fn overlapping(count: usize, host: &str, have_stages: bool) -> String {
    use serde_json::json;
    let task = |id: usize, finish: i64| {
        // The first task has the host's name.
        let host = if id == 0 { host } else { "host" };
        json!({"Task ID": id, "Index": 0, "Attempt": 0, "Launch Time": 2_000, "Executor ID": "1", "Host": host,
            "Locality": "ANY", "Speculative": false, "Getting Result Time": 0, "Finish Time": finish, "Failed": false,
            "Killed": false, "Accumulables": []})
    };
    let stage = |id: usize| {
        json!({"Stage ID": id, "Stage Attempt ID": 0, "Stage Name": "<".repeat(200), "Number of Tasks": count, "RDD Info": [],
            "Details": "", "Submission Time": 1_900})
    };
    let stages: Vec<usize> = (0..if have_stages { count } else { 1 }).collect();
    let infos: Vec<Value> = stages.iter().map(|id| stage(*id)).collect();
    let mut lines = vec![
        json!({"Event": "SparkListenerApplicationStart", "App Name": "a", "App ID": "app-1", "Timestamp": 1_000, "User": "u"}),
        json!({"Event": "SparkListenerJobStart", "Job ID": 0, "Submission Time": 1_500, "Stage Infos": infos,
            "Stage IDs": stages, "Properties": {}}),
    ];
    for info in infos {
        lines.push(json!({"Event": "SparkListenerStageSubmitted", "Stage Info": info}));
    }
    for id in 0..count {
        let of = if have_stages { id } else { 0 };
        lines.push(json!({"Event": "SparkListenerTaskStart", "Stage ID": of, "Stage Attempt ID": 0, "Task Info": task(id, 0)}));
        lines.push(json!({"Event": "SparkListenerTaskEnd", "Stage ID": of, "Stage Attempt ID": 0, "Task Type": "ResultTask",
            "Task End Reason": {"Reason": "Success"}, "Task Info": task(id, 3_000 + id as i64),
            "Task Metrics": {"Executor Run Time": 600}}));
    }
    lines.push(json!({"Event": "SparkListenerApplicationEnd", "Timestamp": 90_000}));
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    lines.join("\n")
}

#[test]
fn lanes_do_not_repeat_a_host_and_stages_without_tasks_are_left_out() {
    let count = 3_000;
    let site = Site::new(&[overlapping(count, &"h".repeat(8 << 10), false)]);
    let app = App::open(&site.store().join("app-1")).expect("opens");
    let model = Model::read(&app).expect("reads");
    assert_eq!((model.stages.len(), model.lanes.len()), (1, count));
    assert_eq!(model.executors[0].host.len(), 8 << 10);
    let one = report(settings(&site), &app, None).expect("is a report");
    // With its host in each of the lanes it would have 24 MB.
    assert!(one.page.len() < 4 << 20, "{}", one.page.len());
    let site = Site::new(&[overlapping(count, "host", true)]);
    let app = App::open(&site.store().join("app-1")).expect("opens");
    let model = Model::read(&app).expect("reads");
    assert_eq!((model.stages.len(), model.lanes.len()), (count, count));
    let few = Whole::of(&model, 10);
    let json = serde_json::to_value(&few).expect("is JSON");
    let length = |value: &Value| value.as_array().map(Vec::len);
    assert_eq!(
        (length(&json["stages"]), length(&json["lanes"]["core"])),
        (Some(10), Some(10))
    );
    assert!(
        json.to_string().len() < 16 << 10,
        "{}",
        json.to_string().len()
    );
    let all = report(settings(&site), &app, None).expect("is a report");
    assert!(all.page.len() < 12 << 20, "{}", all.page.len());
    let missing = format!(
        "{} stage attempts, those with least task time, have no page",
        count - STAGES
    );
    assert_eq!(all.left_out, [missing]);
}

#[test]
fn a_report_reads_its_application_once() {
    let site = Site::new(&[
        Made::new("app-1", vec![Stage::new("map", vec![Task::new(9, 1)])])
            .log()
            .0,
    ]);
    let app = App::open(&site.store().join("app-1")).expect("opens");
    let is_kept = |server: &Server| {
        let first = server.timeline(&app).expect("reads");
        server.timelines.run_pending_tasks();
        let second = server.timeline(&app).expect("reads");
        let parameters = Parameters(Vec::new());
        let memory = || server.memory(&app, &first, &parameters).expect("reads");
        let before = memory();
        server.memories.run_pending_tasks();
        (
            std::sync::Arc::ptr_eq(&first, &second),
            std::sync::Arc::ptr_eq(&before, &memory()),
        )
    };
    assert_eq!(is_kept(&Server::new(settings(&site))), (false, false));
    assert_eq!(is_kept(&server(settings(&site))), (true, true));
}

#[test]
fn what_cannot_be_read_is_named() {
    use smtt_store::history::batch::{Batch, Cell};
    use smtt_store::history::workers::{Bounds as Room, REST, Whose, Workers};
    let site = Site::new(&[
        Made::new("app-1", vec![Stage::new("map", vec![Task::new(9, 1)])])
            .log()
            .0,
    ]);
    let any = Room {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    for user in [7, 8] {
        let mut batch = Batch::new(&REST);
        batch.push(&["worker", "", "{}"].map(Cell::Text));
        let host = format!("node-{user}");
        let mut workers = Workers::take(&site.store(), &host, 1, None, any).expect("opens");
        let done = workers.add(Whose::of("app-1", user), 0, &batch, &|uid| uid);
        done.expect("writes");
    }
    let app = App::open(&site.store().join("app-1")).expect("opens");
    let of = |user: Option<u32>| {
        report(settings(&site), &app, user)
            .expect("is a report")
            .left_out
    };
    let all = of(None).join("\n");
    for part in [
        "functions of tasks: ",
        "the memory of executors: ",
        "what the workers wrote: ",
    ] {
        assert!(
            all.contains(&format!("{part}executors of users 7, 8 claim")),
            "{part}: {all}"
        );
    }
    assert_eq!(of(Some(7)), Vec::<String>::new());
    // A file that is no table: the report names no path of the machine.
    site.spoil_workers();
    let report = report(settings(&site), &app, Some(7)).expect("is a report");
    let all = report.left_out.join("\n");
    for part in [
        "timeline/memory: ",
        "the memory of executors: ",
        "findings are without ",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let path = site.store().display().to_string();
    assert!(
        !all.contains(&path) && !report.page.contains(&path),
        "{all}"
    );
}
