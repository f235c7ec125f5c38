//! A headless Chromium, driven over the pipes of its DevTools protocol.
//!
//! Owns the process, its profile and one page. Always true: it reaches nothing but this host, ends
//! by its own id when dropped, and whatever the page complains about is kept for the test.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Browser {
    child: Child,
    orders: std::fs::File,
    messages: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub fn start() -> Browser {
        let profile = tempfile::tempdir().expect("a directory");
        let (orders, answers) = (
            profile.path().join("orders"),
            profile.path().join("answers"),
        );
        super::run("mkfifo", &[&text(&orders), &text(&answers)]);
        // The browser reads orders from descriptor 3 and answers on 4.
        let line = "orders=$1 answers=$2 profile=$3; shift 3; \
                    exec chromium \"$@\" --user-data-dir=\"$profile\" about:blank \
                    3<\"$orders\" 4>\"$answers\"";
        let child = Command::new("sh")
            .args(["-c", line, "sh", &text(&orders), &text(&answers)])
            .arg(profile.path().join("profile"))
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--remote-debugging-pipe",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its helpers are of its group, and end with it.
            .process_group(0)
            .spawn()
            .expect("start the browser");
        let orders = std::fs::File::options().write(true).open(&orders);
        let answers = std::fs::File::open(&answers).expect("open the answers");
        let mut browser = Browser {
            child,
            orders: orders.expect("open the orders"),
            messages: listen(answers),
            session: None,
            sent: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.order("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.order("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.order(domain, json!({}));
        }
        browser
    }

    /// One command of the protocol; its result.
    pub fn order(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.orders.write_all(&bytes).expect("tell the browser");
        loop {
            let message = self.messages.recv_timeout(ANSWER_TIMEOUT);
            let message = message.unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => message["params"]["entry"]["level"] == "error",
            Some("Runtime.consoleAPICalled") => message["params"]["type"] == "error",
            _ => false,
        };
        if complaint {
            self.complaints.push(message["params"].to_string());
        }
    }

    pub fn open(&mut self, address: &str) {
        self.order("Page.navigate", json!({ "url": address }));
    }

    /// What an expression is in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let answer = self.order("Runtime.evaluate", asked);
        answer["result"]["value"].clone()
    }

    /// Errors of the console and of scripts so far.
    pub fn complaints(&mut self) -> Vec<String> {
        self.value("0");
        std::mem::take(&mut self.complaints)
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

/// Messages end with a zero byte.
fn listen(answers: std::fs::File) -> Receiver<Value> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        loop {
            let mut bytes = Vec::new();
            match answers.read_until(0, &mut bytes) {
                Ok(read) if read > 1 => {}
                _ => return,
            }
            bytes.pop();
            let message = serde_json::from_slice(&bytes).expect("the browser sends JSON");
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    messages
}

impl Drop for Browser {
    fn drop(&mut self) {
        // SAFETY: a plain call; the group was made for this child, which is not yet waited for.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}
