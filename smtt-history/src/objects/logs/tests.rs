//! Parts of a log among the objects of its folder, and the time limits.

use std::time::Instant;

use super::*;

fn object(name: String) -> Object {
    Object {
        name,
        size: 1,
        tag: None,
        modified_ms: 0,
    }
}

#[test]
fn parts_of_a_large_folder_are_found_in_their_order_and_without_a_search_for_each() {
    // A search for each part would compare 5,000,000,000 names.
    let count = 100_000;
    let objects = (0..count).rev().flat_map(|at| {
        let part = object(format!("events_{at}_app-1"));
        [
            part,
            object(format!("appstatus_{at}")),
            object(format!("a/events_{at}_x")),
        ]
    });
    let objects: Vec<Object> = objects.collect();
    let begun = Instant::now();
    let parts = parts_of(objects);
    let took = begun.elapsed();
    assert_eq!(parts.len(), count);
    let is_named = |(at, part): (usize, &Object)| part.name == format!("events_{at}_app-1");
    assert!(parts.iter().enumerate().all(is_named));
    assert!(took.as_secs() < 20, "{took:?}");
}

#[test]
fn a_bucket_that_gives_no_answer_ends_a_question_and_a_copy_in_time() {
    // It accepts connections, and sends nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = silent.local_addr().expect("has one");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("starts");
    runtime.block_on(async {
        let limit = Duration::from_millis(300);
        let logs = BucketLogs {
            bucket: Bucket::at(&format!("http://{address}")),
            most: 1000,
            time: (limit, limit),
        };
        let found = Found {
            name: "app-1".to_owned(),
            objects: vec![object("app-1".to_owned())],
        };
        let begun = Instant::now();
        let troubles = [
            logs.find("app-1").await.map(|_| ()).expect_err("no answer"),
            logs.copy(&found).await.map(|_| ()).expect_err("no answer"),
        ];
        for trouble in troubles {
            let said = trouble.to_string();
            assert!(
                said.contains("s3://bucket/logs/app-1: it took longer"),
                "{said}"
            );
        }
        // One request with its tries has 45 s.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    });
}
