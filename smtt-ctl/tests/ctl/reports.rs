//! `--cluster report`: the page of an application over real servers of the daemon, beside workers that are dead, that fail
//! halfway, or that lie. Each daemon's own answer on its socket is the witness of the totals.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use smtt_model::units;

use super::workers::{Workers, altered, dead, facts, rows, sum, text};

const APP: &str = "app-20260101120000-0001";

/// What the daemons of these workers say of a listing.
fn own(workers: &Workers, of: &[usize], listing: &str) -> Vec<Value> {
    let all = of
        .iter()
        .flat_map(|at| rows(&workers.daemons[*at].json(&[listing, "--json"])).clone());
    all.collect()
}

fn application<'a>(report: &'a Value, app: &str) -> &'a Value {
    let found = rows(&report["applications"])
        .iter()
        .find(|application| application["application_id"] == app);
    found.unwrap_or_else(|| panic!("{app} in {report}"))
}

fn parsed(page: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    roxmltree::Document::parse_with_options(page, options).expect("well-formed")
}

/// Text of the elements that a test selects.
fn said(page: &str, selects: impl Fn(&roxmltree::Node<'_, '_>) -> bool) -> String {
    let document = parsed(page);
    let nodes = document.descendants().filter(|node| selects(node));
    let texts = nodes.flat_map(|node| {
        node.descendants()
            .filter(roxmltree::Node::is_text)
            .filter_map(|part| part.text())
    });
    texts.collect()
}

/// The figure of the page's head under a name.
fn figure(page: &str, name: &str) -> String {
    let document = parsed(page);
    let mut pairs = document
        .descendants()
        .filter(|node| node.has_tag_name("div"));
    let pair = pairs.find(|node| {
        let mut parts = node.children();
        parts.any(|part| part.has_tag_name("dt") && part.text() == Some(name))
    });
    let pair = pair.unwrap_or_else(|| panic!("{name} in {page}"));
    let value = pair.children().filter(|part| part.has_tag_name("dd"));
    let texts = value.flat_map(|node| {
        node.descendants()
            .filter(roxmltree::Node::is_text)
            .filter_map(|part| part.text())
    });
    texts.collect()
}

fn page(workers: &Workers, addresses: &[SocketAddr], code: i32) -> String {
    let arguments = ["report", "--html", "--app", APP, "--deadline", "30"];
    let output = workers.ctl(addresses, &arguments);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    text(&output.stdout)
}

#[test]
fn a_report_has_the_totals_of_its_workers_and_names_those_that_are_missing() {
    let workers = Workers::start();
    let dead = dead();
    let mut addresses = workers.addresses();
    addresses.push(dead);
    let output = workers.ctl(&addresses, &["report", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["complete"], false);
    assert_eq!(rows(&report["workers"]).len(), 4);
    assert_eq!(rows(&report["applications"]).len(), 2);
    for (app, of) in [(APP, &[0, 1][..]), ("app-20260101120000-0002", &[2][..])] {
        let application = application(&report, app);
        let names: Vec<String> = of
            .iter()
            .map(|at| workers.ports[*at].address.to_string())
            .collect();
        assert_eq!(application["hosts"], json!(names));
        // Witness: the executors, RDDs and findings of each daemon.
        let executors = own(&workers, of, "executors");
        assert_eq!(rows(&application["executors"]).len(), executors.len());
        for row in rows(&application["executors"]) {
            assert!(
                names.iter().any(|name| row["worker"] == name.as_str()),
                "{row}"
            );
        }
        let total = sum(&executors, "page_faults");
        assert!(total > 0);
        assert_eq!(application["summary"]["page_faults"].as_u64(), Some(total));
        assert_eq!(sum(rows(&application["executors"]), "page_faults"), total);
        let rdds = own(&workers, of, "rdds");
        for field in [
            "page_faults",
            "storage_memory_bytes",
            "execution_memory_bytes",
        ] {
            assert_eq!(
                sum(rows(&application["rdds"]), field),
                sum(&rdds, field),
                "{field}"
            );
        }
        assert_eq!(
            sum(rows(&application["rdds"]), "page_faults"),
            application["summary"]["page_faults_attributed"]
                .as_u64()
                .expect("counted")
        );
        for (at, advice) in of.iter().zip(rows(&application["advice"])) {
            let own = workers.daemons[*at].json(&["advise", "--json"]);
            assert_eq!(advice["findings"], own["applications"][0]["findings"]);
            assert_eq!(
                advice["worker"],
                workers.ports[*at].address.to_string().as_str()
            );
        }
        assert_eq!(rows(&application["advice"]).len(), of.len());
    }
    let table = workers.ctl(&addresses, &["report", "--app", APP, "--by", "name"]);
    assert_eq!(table.status.code(), Some(3), "{table:?}");
    let shown = text(&table.stdout);
    let first: Vec<&str> = shown.lines().take(2).collect();
    assert_eq!(first[0], "1 of 4 workers is missing in all figures");
    assert!(
        first[1].starts_with(&format!("missing: {dead}: cannot connect")),
        "{shown}"
    );
    for said in [
        "on 2 workers: ",
        "RDDs with most page faults",
        "Stages with most page faults",
        "Findings",
        "RDDs by name",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    assert!(
        shown.lines().any(|line| line.starts_with("HOST ")),
        "{shown}"
    );
    let none = workers.ctl(&workers.addresses(), &["report", "--app", "nowhere"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert!(text(&none.stderr).contains("no applications match --app nowhere; there are"));
}

#[test]
fn a_page_of_a_cluster_is_of_all_workers_and_names_the_missing_above_all_figures() {
    let workers = Workers::start();
    let dead = dead();
    let mut addresses = workers.addresses();
    addresses.push(dead);
    let page = page(&workers, &addresses, 3);
    let executors = own(&workers, &[0, 1], "executors");
    assert_eq!(
        figure(&page, "Page faults"),
        units::count(sum(&executors, "page_faults"))
    );
    assert_eq!(
        figure(&page, "Storage memory now"),
        units::bytes(sum(&executors, "storage_memory_bytes"))
    );
    assert_eq!(figure(&page, "Executors on these workers"), "2 (2 alive)");
    let header = said(&page, |node| node.has_tag_name("header"));
    assert!(header.contains("as 2 of 4 workers see it"), "{header}");
    let missing = said(&page, |node| {
        node.attribute("class")
            .is_some_and(|class| class.ends_with("missing"))
    });
    assert!(
        missing.contains(&format!("{dead}: cannot connect")),
        "{missing}"
    );
    assert!(
        page.find("Missing in all figures") < page.find("<h2"),
        "above all figures"
    );
    let processes = said(&page, |node| node.attribute("id") == Some("processes"));
    for (at, port) in workers.ports.iter().enumerate() {
        assert_eq!(
            processes.contains(&port.address.to_string()),
            at < 2,
            "{processes}"
        );
    }
    let holding = said(&page, |node| node.attribute("id") == Some("holding"));
    let stored = sum(&own(&workers, &[0, 1], "rdds"), "storage_memory_bytes");
    assert!(
        holding.contains(&units::bytes(stored)),
        "{stored}: {holding}"
    );
    // Two applications are two pages in a folder.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let output = workers.ctl(
        &workers.addresses(),
        &["report", "--html", "--output", path],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for app in [APP, "app-20260101120000-0002"] {
        let page = std::fs::read_to_string(Path::new(path).join(format!("{app}.html")));
        parsed(&page.expect("written"));
    }
    let one = workers.ctl(&workers.addresses(), &["report", "--html"]);
    assert_eq!(one.status.code(), Some(2), "{one:?}");
    assert!(text(&one.stderr).contains("a page is about one application, and 2 are known"));
}

#[test]
fn a_worker_that_fails_halfway_is_in_no_figure_and_one_without_history_is_in_all_others() {
    let workers = Workers::start();
    let ports = workers.addresses();
    let fails = |part: &'static str| {
        altered(ports[1], move |path, body| {
            (!path.starts_with(part)).then_some(body)
        })
    };
    let first = sum(&own(&workers, &[0], "executors"), "page_faults");
    let both = sum(&own(&workers, &[0, 1], "executors"), "page_faults");
    assert!(first < both);
    for part in ["/v1/pages", "/v1/stages", "/v1/advise", "/v1/status"] {
        let halfway = fails(part);
        let page = page(&workers, &[ports[0], halfway], 3);
        assert_eq!(figure(&page, "Page faults"), units::count(first), "{part}");
        let name = halfway.to_string();
        assert!(page.contains("Missing in all figures"), "{part}");
        let processes = said(&page, |node| node.attribute("id") == Some("processes"));
        assert!(!processes.contains(&name), "{part}: {processes}");
    }
    let without = fails("/v1/history");
    let page = page(&workers, &[ports[0], without], 0);
    assert_eq!(figure(&page, "Page faults"), units::count(both));
    assert!(page.contains("Missing in memory over time"), "{page}");
    assert!(!page.contains("Missing in all figures"));
    let without = fails("/v1/tasks/ended");
    let page = self::page(&workers, &[ports[0], without], 0);
    assert_eq!(figure(&page, "Page faults"), units::count(both));
    assert!(page.contains("Missing in functions"), "{page}");
    assert!(!page.contains("Missing in all figures"));
    // A worker without executors of the application has nothing that could be missing.
    let elsewhere = altered(ports[2], |path, body| {
        (!path.starts_with("/v1/history")).then_some(body)
    });
    let page = self::page(&workers, &[ports[0], ports[1], elsewhere], 0);
    assert_eq!(figure(&page, "Page faults"), units::count(both));
    assert!(!page.contains("Missing in memory over time"), "{page}");
    let failed = fails("/v1/rdds");
    let output = workers.ctl(&[ports[0], failed], &["report", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let application = application(&report, APP);
    assert_eq!(application["summary"]["page_faults"].as_u64(), Some(first));
    assert_eq!(sum(rows(&application["executors"]), "page_faults"), first);
}

/// Every figure as large as it can be, every text hostile and long.
fn worst(key: &str, value: &mut Value) {
    let is_figure = [
        "_bytes", "_faults", "_ns", "_read", "_write", "_stored", "_found",
    ]
    .iter()
    .any(|end| key.ends_with(end));
    match value {
        Value::Number(_) if is_figure => *value = json!(u64::MAX),
        Value::String(name) if ["name", "call_site", "node", "host", "title"].contains(&key) => {
            *name = "</bdi><script>alert(1)</script>\u{202e}\u{1b}[31m".repeat(2000);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| worst(key, item)),
        Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| worst(key, value)),
        _ => {}
    }
}

#[test]
fn a_worker_that_lies_blows_up_neither_the_page_nor_the_figures_of_others() {
    let workers = Workers::of(&(0..2).map(facts).collect::<Vec<_>>());
    let ports = workers.addresses();
    let liar = altered(ports[1], |path, mut body| {
        worst("", &mut body);
        if path.starts_with("/v1/report") {
            let row = body["applications"][0]["executors"][0].clone();
            let mut row = row.as_object().expect("a row").clone();
            row.insert("host".to_owned(), json!("h"));
            let many = vec![Value::Object(row); 1500];
            body["applications"][0]["executors"] = json!(many);
        }
        Some(body)
    });
    let page = page(&workers, &[ports[0], liar], 0);
    let document = parsed(&page);
    assert!(page.len() < 3 << 20, "{} bytes", page.len());
    let scripts = document
        .descendants()
        .filter(|node| node.has_tag_name("script"));
    assert_eq!(scripts.count(), 1, "the page's own");
    assert!(!page.contains(['\u{1b}', '\u{202e}']));
    assert!(page.contains("501 executors with fewer page faults are left out"));
    let output = workers.ctl(
        &[ports[0], liar],
        &["report", "--app", APP, "--deadline", "30"],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown = text(&output.stdout);
    assert!(shown.contains("hidden: 1,451 executors"), "{shown}");
    assert!(shown.len() < 1 << 20, "{} bytes", shown.len());
    // The figures of the other worker are as it gives them.
    let name = ports[0].to_string();
    let json = workers.ctl(
        &[ports[0], liar],
        &["executors", "--json", "--deadline", "30"],
    );
    let all: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let own = own(&workers, &[0], "executors");
    let of_worker = rows(&all["rows"])
        .iter()
        .find(|row| row["worker"] == name.as_str());
    assert_eq!(
        of_worker.expect("a row")["page_faults"],
        own[0]["page_faults"]
    );
}
