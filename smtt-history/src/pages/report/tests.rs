//! Reports of made applications: names stay text, addresses lead within the file, and nothing is loaded.

use super::super::tests::{HOSTILE, Site, log};
use super::*;
use crate::log::Bounds;
use crate::made::{Made, Stage, Task};

fn of(text: &str, id: &str) -> String {
    let site = Site::new(&[text.to_owned()]);
    let settings = Settings {
        store: site.store(),
        event_logs: None,
        cache_bytes: 1 << 20,
        bounds: Bounds::default(),
        bucket: None,
    };
    let app = App::open(&site.store().join(id)).expect("opens");
    report(settings, &app, None).expect("is a report")
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
    assert_eq!(data["timeline"]["lanes"][0]["executor"], ran);
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
