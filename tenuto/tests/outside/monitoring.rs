//! The board and the alerts that come with the product, against the metrics of a live daemon, and
//! against a Prometheus that scrapes one under load.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::common::nbd::{CMD_TRIM, Client};
use crate::common::{Rig, have, run, text_of, wait_until};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(180);

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
    let mut client = rig.connect("write-back");
    let text = with_all_series(&rig, &mut client);
    drop(client);
    daemon.stop();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let metrics = lines.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned());
    metrics.collect()
}

/// The metrics, once this volume has had all kinds of requests in the last seconds.
fn with_all_series(rig: &Rig, client: &mut Client) -> String {
    let mut text = String::new();
    let mut at = 8 * MIB;
    // Figures of the last seconds are those of a sample that has ended.
    wait_until("a volume with all its series", PATIENCE, || {
        client.write(0, &[1; 8 << 10]);
        client.flush();
        // What was never read is read at the origin.
        client.read(at, 4 << 10);
        at = 8 * MIB + (at + (4 << 10)) % (8 * MIB);
        text = rig.get("/metrics");
        ["read", "write", "flush", "origin"].iter().all(|what| {
            let name = format!("tenuto_volume_{what}_latency_p99_seconds");
            text.contains(&format!("{name}{{volume=\"write-back"))
        })
    });
    text
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

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/prometheus/tenuto.rules.yml")
}

#[test]
fn the_alerts_are_valid() {
    if have("the_alerts_are_valid", &["promtool"]) {
        run("promtool", &["check", "rules", &rules().to_string_lossy()]);
    }
}

/// Fails when: a name has another unit than seconds or bytes, or a counter does not end as one.
#[test]
fn the_metrics_are_as_their_readers_want_them() {
    let mut rig = Rig::new();
    for policy in ["write-back", "ephemeral", "write-through"] {
        let image = rig.image(&format!("{policy}.img"), 16 << 20);
        rig.volume(policy, &image, policy, "");
    }
    let daemon = rig.serve();
    let mut client = rig.connect("write-back");
    let text = with_all_series(&rig, &mut client);
    for policy in ["write-back", "ephemeral", "write-through"] {
        let label = format!("volume=\"{policy}\"");
        let series = text.lines().filter(|line| line.contains(&label)).count();
        assert!((30..=60).contains(&series), "{policy} has {series}");
        let info = format!("tenuto_volume_info{{{label},policy=\"{policy}\"}} 1\n");
        assert!(text.contains(&info), "{text}");
    }
    for name in names(&text) {
        for unit in ["milliseconds", "microseconds", "ms", "us", "kib", "percent"] {
            assert!(!name.split('_').any(|part| part == unit), "{name}");
        }
    }
    drop(client);
    daemon.stop();
    if have("the_metrics_are_as_their_readers_want_them", &["promtool"]) {
        let mut check = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool runs");
        let mut input = check.stdin.take().expect("a pipe");
        let (_, page) = text.split_once("\r\n\r\n").expect("head and page");
        input.write_all(page.as_bytes()).expect("written");
        drop(input);
        let output = check.wait_with_output().expect("promtool ends");
        assert!(output.status.success(), "{}", text_of(&output));
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{}",
            text_of(&output)
        );
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

/// A Prometheus with a directory of its own, on the loopback. Killed when dropped.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Scrapes this address once a second, with the rules that come with the product.
    fn start(dir: &Path, target: SocketAddr) -> Prometheus {
        let address = free_address();
        let config = dir.join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\n\
             rule_files: [\"{}\"]\nscrape_configs:\n  - job_name: tenuto\n    \
             static_configs:\n      - targets: [\"{target}\"]\n",
            rules().canonicalize().expect("there").display()
        );
        std::fs::write(&config, text).expect("written");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("start prometheus");
        Prometheus { child, address }
    }

    /// `None` while it does not answer yet.
    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        // Of this version a reply comes in one piece.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        serde_json::from_str(reply.split_once("\r\n\r\n")?.1).ok()
    }

    /// The values of a query; a query that is wrong fails the test.
    fn values(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let Some(reply) = self.ask(&format!("/api/v1/query?query={encoded}")) else {
            return Vec::new();
        };
        assert_eq!(reply["status"], "success", "{query}: {reply}");
        let result = reply["data"]["result"].as_array().expect("a vector");
        let values = result.iter().map(|series| series["value"][1].as_str());
        values
            .map(|text| text.expect("a text").parse().expect("a number"))
            .collect()
    }

    /// The alerts as they are: name, health, state.
    fn alerts(&self) -> Vec<(String, String, String)> {
        let Some(reply) = self.ask("/api/v1/rules") else {
            return Vec::new();
        };
        let groups = reply["data"]["groups"].as_array().expect("groups").iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
        let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        rules
            .map(|rule| {
                (
                    text(rule, "name"),
                    text(rule, "health"),
                    text(rule, "state"),
                )
            })
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every query of the board, for all hosts and volumes.
fn queries_of_the_board() -> Vec<String> {
    let board: Value = serde_json::from_str(&file("grafana/tenuto.json")).expect("JSON");
    let panels = board["panels"].as_array().expect("panels").iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let queries = targets.map(|target| target["expr"].as_str().expect("a query"));
    let filled = queries.map(|query| {
        let query = query.replace("$__rate_interval", "30s");
        query.replace("$instance", ".*").replace("$volume", ".*")
    });
    filled.collect()
}

/// Every condition of the alerts, made to tell of all it looks at whether it holds.
fn conditions_of_the_alerts() -> Vec<String> {
    let text = file("prometheus/tenuto.rules.yml");
    let conditions = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let told = conditions.map(|condition| {
        let told = condition.replace(" == ", " == bool ");
        told.replace(" > ", " > bool ")
    });
    told.collect()
}

/// All that guests do, over and over, until it is enough.
fn work(client: &mut Client, enough: &AtomicBool) {
    let mut round = 0;
    while !enough.load(Ordering::Relaxed) {
        let at = round % 64 * (64 << 10);
        client.write(at, &[round as u8; 8 << 10]);
        client.flush();
        // What was written, what was never, and that once more.
        for offset in [at, 8 * MIB + at, 8 * MIB + at] {
            client.read(offset, 16 << 10);
        }
        assert_eq!(
            client.command(CMD_TRIM, 0, at + (32 << 10), 4096),
            0,
            "discarded"
        );
        round += 1;
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn every_query_of_board_and_alerts_has_an_answer_in_a_real_prometheus() {
    let test = "every_query_of_board_and_alerts_has_an_answer_in_a_real_prometheus";
    if !have(test, &["prometheus"]) {
        return;
    }
    let mut rig = Rig::new();
    let metrics = free_address();
    rig.section(&format!("[listen]\nmetrics = \"{metrics}\"\n"));
    let policies = ["write-back", "ephemeral", "write-through", "uncached"];
    for policy in policies {
        let image = rig.image(&format!("{policy}.img"), 16 * MIB);
        rig.volume(policy, &image, policy, "");
    }
    let daemon = rig.serve();
    let prometheus = Prometheus::start(&rig.dir, metrics);
    let (enough, rig) = (AtomicBool::new(false), &rig);
    let mut left: Vec<String> = queries_of_the_board();
    assert!(left.len() > 50, "{} queries", left.len());
    left.extend(conditions_of_the_alerts());
    std::thread::scope(|scope| {
        let end = Ending(&enough);
        for policy in policies {
            let enough = &enough;
            scope.spawn(move || work(&mut rig.connect(policy), enough));
        }
        let start = std::time::Instant::now();
        while !left.is_empty() {
            rig.done(&["volume", "destage", "write-back", "--wait", "--quiet"]);
            left.retain(|query| {
                !prometheus
                    .values(query)
                    .iter()
                    .any(|value| value.is_finite())
            });
            assert!(start.elapsed() < PATIENCE, "without an answer: {left:#?}");
        }
        drop(end);
    });
    wait_until("all alerts were looked at", PATIENCE, || {
        let alerts = prometheus.alerts();
        assert!(
            alerts.iter().all(|(_, health, _)| health != "err"),
            "{alerts:?}"
        );
        !alerts.is_empty() && alerts.iter().all(|(_, health, _)| health == "ok")
    });
    let loud = prometheus
        .alerts()
        .into_iter()
        .find(|(_, _, state)| state == "firing");
    assert_eq!(loud, None, "nothing is wrong");
    daemon.stop();
    wait_until("an alert says that the daemon is gone", PATIENCE, || {
        let mut alerts = prometheus.alerts().into_iter();
        alerts.any(|(name, _, state)| name == "TenutoDown" && state != "inactive")
    });
}

/// Says that it is enough, also where the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
