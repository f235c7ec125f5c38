//! What `trace synth` says of its traces, against a script that shares nothing with it.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{have, run};

/// Every figure of one document in the other; how many.
fn compare(place: &str, ours: &Value, opinion: &Value) -> usize {
    match (ours, opinion) {
        (Value::Object(ours), Value::Object(opinion)) => opinion
            .iter()
            .map(|(key, value)| compare(&format!("{place}.{key}"), &ours[key], value))
            .sum(),
        (Value::Array(ours), Value::Array(opinion)) => {
            assert_eq!(ours.len(), opinion.len(), "{place}");
            let pairs = ours.iter().zip(opinion);
            pairs
                .map(|(ours, opinion)| compare(place, ours, opinion))
                .sum()
        }
        (Value::Number(ours), Value::Number(opinion)) => {
            let (ours, opinion) = (ours.as_f64().unwrap(), opinion.as_f64().unwrap());
            // Shares differ by rounding alone; all else is counted.
            let near = (ours - opinion).abs() <= 1e-9 * ours.abs();
            assert!(near, "{place}: {ours} here, {opinion} in the script");
            1
        }
        _ => {
            assert!(!ours.is_null(), "{place}: not here");
            0
        }
    }
}

#[test]
fn a_script_of_its_own_finds_the_same_statistics_in_a_trace_of_desktops() {
    let test = "a_script_of_its_own_finds_the_same_statistics_in_a_trace_of_desktops";
    if !have(test, &["python3"]) {
        return;
    }
    let house = tempfile::tempdir().unwrap();
    let path = |name: &str| house.path().join(name).display().to_string();
    let (trace, lines) = (path("t.trace"), path("t.csv"));
    // Four desktops until after the first peak.
    let tenuto = env!("CARGO_BIN_EXE_tenuto");
    let asked = "trace synth desktops --desktops 4 --hours 33 --seed 5 --json".split(' ');
    let asked: Vec<&str> = asked.chain([trace.as_str()]).collect();
    let mut ours: Value = serde_json::from_str(&run(tenuto, &asked)).unwrap();
    run(tenuto, &["trace", "convert", &trace, &lines, "--to", "msr"]);
    let classes = ours["classes"].as_array().unwrap();
    let page_file = classes.iter().find(|class| class["name"] == "page-file");
    let range = &page_file.unwrap()["bytes"][0];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside/opinion/desktops.py");
    let output = Command::new("python3")
        .arg(script)
        .args(["--desktops", "4"])
        .args(["--disk-bytes", &ours["disk_bytes"].to_string()])
        .args(["--page-file", &format!("{}:{}", range[0], range[1])])
        .arg(&lines)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    let opinion: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["reads", "writes"] {
        ours["measures"][key] = ours[key].take();
    }
    let figures = compare("measures", &ours["measures"], &opinion);
    assert!(figures >= 20, "{figures} figures only");
    assert_eq!(opinion["peaks"][0]["name"], "Fri 8:30");
}
