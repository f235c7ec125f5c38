//! The board and the alerts that come with the product, against the metrics of a live daemon.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::common::{Rig, on_path, run};

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../packaging")
        .join(name);
    std::fs::read_to_string(path).expect("read what is packaged")
}

/// The names of metrics in a text: words that begin with `tenuto_`.
fn names(text: &str) -> BTreeSet<String> {
    let part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !part(letter))
        .filter(|word| word.starts_with("tenuto_"))
        .map(str::to_owned)
        .collect()
}

/// What a daemon with one volume of each kind shows.
fn shown() -> BTreeSet<String> {
    let mut rig = Rig::new();
    for policy in ["write-back", "ephemeral"] {
        let image = rig.image(&format!("{policy}.img"), 16 << 20);
        rig.volume(policy, &image, policy, "");
    }
    let daemon = rig.serve();
    let text = rig.get("/metrics");
    daemon.stop();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let metrics = lines.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned());
    metrics.collect()
}

#[test]
fn every_metric_of_the_board_and_of_the_alerts_is_there() {
    let shown = shown();
    for source in ["grafana/tenuto.json", "prometheus/tenuto.rules.yml"] {
        let wanted = names(&file(source));
        assert!(wanted.len() > 5, "{source} names {wanted:?}");
        let missing: Vec<_> = wanted.difference(&shown).collect();
        assert!(missing.is_empty(), "{source}: no daemon shows {missing:?}");
    }
}

#[test]
fn the_board_names_its_data_source_and_units_everywhere() {
    let board: Value = serde_json::from_str(&file("grafana/tenuto.json")).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "{panel}: its id is taken");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{panel}"
        );
        assert!(!panel["targets"].as_array().expect("targets").is_empty());
    }
    let variables = board["templating"]["list"].as_array().expect("variables");
    let names: Vec<_> = variables.iter().map(|variable| &variable["name"]).collect();
    assert_eq!(names, ["datasource", "instance", "volume"]);
}

#[test]
fn the_alerts_are_valid() {
    // Part of a large package that nothing else needs: where it is, it is asked.
    if on_path("promtool") {
        let rules =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/prometheus/tenuto.rules.yml");
        run("promtool", &["check", "rules", &rules.to_string_lossy()]);
    }
}
