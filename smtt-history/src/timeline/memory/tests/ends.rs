//! What a daemon that was killed left of an executor that had just ended.

use super::*;

#[tokio::test]
async fn an_executor_that_ended_before_a_kill_is_read_once() {
    // The last history has fewer points: it was thinned.
    let last: Vec<Value> = (5..20).map(|at| point(at * 4, &[(5, 40 * MIB)])).collect();
    let ended = documents(&[history("1", last)]);
    let mut id = Batch::new(&REST);
    let text = who("1").to_string();
    id.push(&[
        Cell::Text("executor"),
        Cell::Text("1.100"),
        Cell::Text(&text),
    ]);
    let before: Vec<Value> = (0..8).map(|at| point(at * 2, &[(5, 8 * MIB)])).collect();
    let whole = Store::new(&TASKS_OF_TWO);
    whole.write("node-1", 10, &[documents(&[worker()])]);
    let killed = Store::new(&TASKS_OF_TWO);
    killed.write(
        "node-1",
        10,
        &[documents(&[worker(), history("1", before)])],
    );
    for store in [&whole, &killed] {
        store.write_part("node-1", 10, 1, &ended);
        store.write_part("node-1", 10, 2, &id);
    }
    let query = "width=200&from=0&to=100000";
    assert_eq!(killed.answer(query).await, whole.answer(query).await);
}
