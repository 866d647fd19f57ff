//! Which of several signals and errors is the cause.

use super::*;

/// The same signal, of another sender and at another time.
fn then(case: &mut Case, second: u64, signal: u32, from: u32) {
    let note = sent(JVM, signal, from);
    case.signals.push(Noted {
        time_ns: second * S,
        ..note
    });
}

#[test]
fn an_error_that_no_code_caught_is_the_cause_of_a_kill_after_it() {
    let error = "java.lang.OutOfMemoryError: Java heap space";
    // Spark's shutdown hangs without memory, and the NodeManager stops and kills what is left.
    for (status, wanted) in [
        (
            9,
            "process 300 (sender, user 1000) then killed it with SIGTERM.",
        ),
        (
            143 << 8,
            "process 300 (sender, user 1000) then killed it with SIGTERM.",
        ),
    ] {
        let mut case = ended(status);
        case.exhausted.push(out_of(error, true, 60 * S));
        then(&mut case, 970, 15, 300);
        // Another thread finds no memory during the stop.
        case.exhausted.push(out_of(error, true, 5 * S));
        then(&mut case, 999, 9, 300);
        case.outside.parent_pid = Some(300);
        let report = judge(&case, 0);
        assert_eq!(report.row.verdict, Verdict::HeapExhausted);
        assert!(report.row.sentence.ends_with(wanted), "{report:?}");
        // An error that came after the stop is not its cause.
        case.exhausted.remove(0);
        assert_eq!(of(&case), Verdict::StoppedBySpark);
    }
    let mut case = ended(9);
    case.exhausted.push(out_of(error, true, S));
    let report = judge(&case, 0);
    assert_eq!(report.row.verdict, Verdict::HeapExhausted);
    assert!(report.row.sentence.ends_with("SIGKILL then ended it."));
}

#[test]
fn the_command_for_out_of_memory_is_named_also_where_another_process_kills_what_it_stopped() {
    let mut case = ended(9);
    case.outside.options = vec!["-XX:OnOutOfMemoryError=kill %p".into()];
    then(&mut case, 980, 15, JVM + 1);
    case.signals[0].what.from_own = true;
    // HotSpot reports the error after the command.
    case.exhausted
        .push(out_of("Java heap space", false, 19 * S));
    then(&mut case, 981, 15, 300);
    then(&mut case, 982, 9, 300);
    let report = judge(&case, 0);
    assert_eq!(report.row.verdict, Verdict::HeapExhausted);
    assert!(report.row.sentence.contains("-XX:OnOutOfMemoryError then"));
    case.signals[0].what.sent.signal = 6;
    assert_eq!(of(&case), Verdict::KilledBySignal, "no stop of its own");
}

#[test]
fn the_first_signal_decides() {
    let decides = |case: &Case| {
        case.decisive()
            .and_then(|(_, note)| note)
            .map(|note| note.what.sent.sender_pid)
    };
    for (status, second) in [(143 << 8, 15), (9, 9), (9, 15)] {
        // A user stops it, and the cluster what is left.
        let mut case = ended(status);
        then(&mut case, 990, 15, 300);
        then(&mut case, 991, second, 400);
        case.outside.parent_pid = Some(400);
        let report = judge(&case, 0);
        assert_eq!(report.row.verdict, Verdict::KilledBySignal);
        let sentence = &report.row.sentence;
        assert!(
            sentence.starts_with("Process 300 (sender, user 1000) killed it with SIGTERM"),
            "{sentence}"
        );
        assert_eq!(sentence.contains("SIGKILL then ended it"), status == 9);
        assert_eq!(decides(&case), Some(300));
        // The cluster stops it, and a user what is left.
        case.outside.parent_pid = Some(300);
        assert_eq!(of(&case), Verdict::StoppedBySpark);
    }
    // What it survived by minutes is no cause.
    let mut case = ended(9);
    then(&mut case, 800, 1, 300);
    then(&mut case, 999, 9, 400);
    assert_eq!(decides(&case), Some(400));
}

#[test]
fn a_program_is_that_of_the_sender_whose_signal_decides() {
    let mut case = ended(6);
    then(&mut case, 998, 11, 300);
    then(&mut case, 999, 15, 400);
    case.outside.sender_program = Some("org.apache.hadoop.Some".into());
    let decisive = case.decisive().and_then(|(_, note)| note);
    assert_eq!(decisive.map(|note| note.what.sent.sender_pid), Some(300));
    let sentence = judge(&case, 0).row.sentence;
    assert!(
        sentence.contains("process 300 (sender, org.apache.hadoop.Some, user 1000)"),
        "{sentence}"
    );
    // The program of another process.
    let mut python = ended(9);
    python.child = Some(at(
        1000 * S,
        ChildEnd {
            pid: 200,
            end: ProcessEnd {
                status: 9,
                ..ProcessEnd::default()
            },
        },
    ));
    python.signals = vec![sent(200, 15, 400), sent(200, 9, 300)];
    let decisive = python.decisive().and_then(|(_, note)| note);
    assert_eq!(decisive.map(|note| note.what.sent.sender_pid), Some(300));
}
