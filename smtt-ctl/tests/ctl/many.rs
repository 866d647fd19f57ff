//! 500 workers by replay: each passes on what a real daemon answered, with page faults of its own. One of them is dead and
//! one answers with an error.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::advise::later_task;
use super::workers::{Workers, dead, head, passed_on, rows, sum, text};

const WORKERS: u64 = 500;
/// The worker that answers with an error, and the dead one.
const SICK: u64 = 7;
const DEAD: u64 = 300;

/// Answers of the real daemon, by path.
type Known = Arc<Mutex<BTreeMap<String, Value>>>;

fn address(number: u64) -> String {
    format!("127.1.{}.{}", number / 250, number % 250 + 1)
}

/// The number of the worker that was asked.
fn number(stream: &TcpStream) -> u64 {
    let IpAddr::V4(address) = stream.local_addr().expect("an address").ip() else {
        panic!("no address of version 4");
    };
    let [_, _, high, low] = address.octets();
    u64::from(high) * 250 + u64::from(low) - 1
}

/// Adds page faults to an answer: to each row, and to the sum of all; in a report to the executors of each application.
fn with_more(mut answer: Value, more: u64) -> Value {
    let add = |value: &mut Value, more: u64| {
        if let Some(faults) = value["page_faults"].as_u64() {
            value["page_faults"] = json!(faults + more);
        }
    };
    let mut count = 0;
    for row in answer["rows"].as_array_mut().into_iter().flatten() {
        add(row, more);
        count += 1;
    }
    if answer["summary"].is_object() {
        add(&mut answer["summary"], more * count);
    }
    for application in answer["applications"].as_array_mut().into_iter().flatten() {
        let mut count = 0;
        for row in application["executors"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            add(row, more);
            count += 1;
        }
        if application["summary"].is_object() {
            add(&mut application["summary"], more * count);
        }
    }
    answer
}

fn give(mut stream: TcpStream, real: SocketAddr, known: &Known) {
    let head = head(&mut stream);
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let number = number(&stream);
    let answer = {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = || {
            let answer = passed_on(&head, real);
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
        };
        known.entry(path).or_insert_with(ask).clone()
    };
    let (status, body) = if number == SICK {
        ("500 Internal Server Error", String::new())
    } else {
        ("200 OK", with_more(answer, number).to_string())
    };
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
}

#[test]
fn sums_of_500_workers_are_those_of_their_parts() {
    let workers = Workers::start();
    // Enough for a finding about the unread block.
    (100..120).for_each(|task| later_task(&workers.daemons[0], task));
    let real = workers.ports[0].address;
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let known = Known::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let known = Arc::clone(&known);
            std::thread::spawn(move || give(stream, real, &known));
        }
    });
    let mut addresses: Vec<SocketAddr> = (0..WORKERS)
        .map(|number| SocketAddr::new(address(number).parse().expect("an address"), port))
        .collect();
    addresses[DEAD as usize] = dead();
    let there = |number: &u64| *number != SICK && *number != DEAD;
    let answered = (0..WORKERS).filter(there).count();
    let ask = |arguments: &[&str]| -> Value {
        let output = workers.ctl(&addresses, arguments);
        // A worker that does not answer makes the answer incomplete.
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(all["complete"], false, "{arguments:?}");
        let said = rows(&all["workers"]).iter();
        let failed = said.filter(|worker| !worker["error"].is_null());
        let failed: Vec<&str> = failed
            .filter_map(|worker| worker["host"].as_str())
            .collect();
        // Hosts that differ need no port.
        let wanted = [SICK, DEAD].map(|number| addresses[number as usize].ip().to_string());
        assert_eq!(failed.len(), 2, "{arguments:?}: {failed:?}");
        assert!(
            wanted.iter().all(|name| failed.contains(&name.as_str())),
            "{failed:?}"
        );
        assert_eq!(rows(&all["workers"]).len() as u64, WORKERS);
        all
    };
    // Page faults of the rows of all that answer, where each has these.
    let faults_of = |own: &[Value]| -> u64 {
        let of = |number| sum(own, "page_faults") + number * own.len() as u64;
        (0..WORKERS).filter(there).map(of).sum()
    };
    let own = |listing: &str| rows(&workers.daemons[0].json(&[listing, "--json"])).clone();
    for listing in ["rdds", "executors", "stages", "tasks"] {
        let own = own(listing);
        assert!(!own.is_empty() && sum(&own, "page_faults") > 0, "{listing}");
        let all = ask(&[listing, "--json", "--limit", "100000"]);
        assert_eq!(all["rows_total"], answered * own.len(), "{listing}");
        let faults = faults_of(&own);
        assert_eq!(sum(rows(&all["rows"]), "page_faults"), faults, "{listing}");
        if listing == "executors" {
            assert_eq!(all["summary"]["page_faults"], faults);
            assert_eq!(all["summary"]["executors"], answered * own.len());
        }
    }
    let advice = ask(&["advise", "--json"]);
    let one = workers.daemons[0].json(&["advise", "--json"]);
    let one = &one["applications"][0];
    assert!(!rows(&one["findings"]).is_empty(), "{one}");
    let mut of = BTreeSet::new();
    for application in rows(&advice["applications"]) {
        assert_eq!(application["findings"], one["findings"]);
        of.insert(application["worker"].as_str().expect("a worker"));
    }
    assert_eq!(rows(&advice["applications"]).len(), answered);
    assert_eq!(of.len(), answered, "each has a worker of its own");
    let report = ask(&["report", "--json"]);
    let [application] = &rows(&report["applications"])[..] else {
        panic!("{}", report["applications"]);
    };
    let (executors, rdds) = (own("executors"), own("rdds"));
    let summary = &application["summary"];
    assert_eq!(summary["executors"], answered * executors.len());
    assert_eq!(summary["page_faults"], faults_of(&executors));
    let listed = rows(&application["executors"]);
    assert_eq!(listed.len(), answered * executors.len());
    assert_eq!(sum(listed, "page_faults"), faults_of(&executors));
    assert_eq!(
        sum(rows(&application["rdds"]), "page_faults"),
        faults_of(&rdds)
    );
    assert_eq!(rows(&application["advice"]).len(), answered);
}
