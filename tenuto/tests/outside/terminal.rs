//! Programs that live on a terminal, in a terminal: `top` inside tmux, looked at from outside.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{EXIT_DONE, EXIT_UNREACHABLE, EXIT_USAGE, Rig, have, run, text_of, wait_until};

const MIB: u64 = 1 << 20;
/// A look every 0.2 s, on a machine that may be busy.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// A terminal with a shell in it.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    fn new(rig: &Rig, columns: u16, rows: u16) -> Terminal {
        let terminal = Terminal {
            socket: rig.dir.join("tmux"),
        };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let config = format!("TENUTO_CONFIG={}", rig.config_path().display());
        // A shell that reads nothing of the user's and says when it is ready for a command.
        let shell = "env -u TENUTO_SOCKET -u NO_COLOR PS1='ready> ' sh";
        terminal.ask(&[
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &rows,
            "-e",
            &config,
            shell,
        ]);
        terminal.shows("ready>");
        terminal
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output: Output = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .args(["-f", "/dev/null"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            text_of(&output)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    fn press(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"][..], keys].concat());
    }

    fn shows(&self, text: &str) {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if screen.contains(text) {
                return;
            }
            let late = start.elapsed() > TURN_TIMEOUT;
            assert!(!late, "{text:?} is not on the screen:\n{screen}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Asserts that the shell has its terminal back as it was.
    fn is_restored(&self) {
        self.shows("ready>");
        let screen = self.screen();
        assert!(!screen.contains("READ/s"), "the page is gone:\n{screen}");
        self.press(&[
            "clear; stty -a | tr ' ;' '\\n\\n' | grep -cx -e icanon -e echo -e isig",
            "Enter",
        ]);
        self.shows("3\nready>");
        let modes = self.ask(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(modes.trim(), "0 1", "normal screen, visible cursor");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
    }
}

fn prepare() -> Rig {
    let mut rig = Rig::new();
    for (name, policy) in [("desk-001", "write-back"), ("pool-007", "ephemeral")] {
        let image = rig.image(&format!("{name}.img"), 16 * MIB);
        rig.volume(name, &image, policy, "destage-after = \"1h\"");
    }
    rig
}

#[test]
fn top_shows_volumes_live_follows_its_daemon_and_gives_the_terminal_back() {
    let test = "top_shows_volumes_live_follows_its_daemon_and_gives_the_terminal_back";
    if !have(test, &["tmux", "stty"]) {
        return;
    }
    let rig = prepare();
    let daemon = rig.serve();
    let terminal = Terminal::new(&rig, 80, 24);
    let top = format!("{} top -d 0.2", env!("CARGO_BIN_EXE_tenuto"));
    terminal.press(&[&top, "Enter"]);
    terminal.shows("READ/s");
    terminal.shows("2 volumes: 2 clean");
    let mut client = rig.connect("desk-001");
    client.write(0, &[7; MIB as usize]);
    terminal.shows("1 dirty, 1 clean");
    // A wider window has more columns, a filter fewer rows, one volume its promise.
    terminal.ask(&["resize-window", "-x", "160", "-y", "40"]);
    terminal.shows("POLICY");
    terminal.press(&["/", "pool", "Enter"]);
    terminal.shows("1 of 1 with \"pool\"");
    terminal.press(&["Escape"]);
    terminal.shows("of 2 ");
    terminal.press(&["Home", "Enter"]);
    terminal.shows("promise  if this host dies now");
    terminal.press(&["Enter"]);
    drop(client);
    daemon.kill();
    terminal.shows("no answer for");
    let daemon = rig.serve();
    wait_until("it is found again", TURN_TIMEOUT, || {
        !terminal.screen().contains("no answer for")
    });
    terminal.shows("desk-001");
    terminal.press(&["q"]);
    terminal.is_restored();
    // The same by a signal.
    terminal.press(&[&format!("clear; {top}"), "Enter"]);
    terminal.shows("READ/s");
    let shell = terminal.ask(&["display-message", "-p", "#{pane_pid}"]);
    let shell = shell.trim();
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
    run("sh", &["-c", &format!("kill -TERM {}", children.unwrap())]);
    terminal.is_restored();
    daemon.stop();
}

#[test]
fn top_without_a_terminal_prints_lines_of_json_or_says_what_to_do() {
    let rig = prepare();
    rig.write_config();
    let said = rig.refused(&["top"], EXIT_USAGE);
    assert!(
        said.contains("no terminal") && said.contains("--json"),
        "{said}"
    );
    let gone = rig.tenuto(&["top", "--json", "-n", "1"]);
    assert_eq!(gone.status.code(), Some(EXIT_UNREACHABLE));
    rig.refused(&["top", "--json", "-d", "0"], EXIT_USAGE);
    let daemon = rig.serve();
    let mut client = rig.connect("desk-001");
    client.write(0, &[7; MIB as usize]);
    let output = rig.tenuto(&["top", "--json", "-n", "2", "-d", "0.2"]);
    assert_eq!(
        output.status.code(),
        Some(EXIT_DONE),
        "{}",
        text_of(&output)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a document on each line"))
        .collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(line["host"], "host-a");
        let volumes = line["volumes"].as_array().expect("volumes");
        let desk = volumes.iter().find(|volume| volume["name"] == "desk-001");
        let desk = desk.expect("the volume");
        assert_eq!(
            (&desk["state"], &desk["dirty_bytes"]),
            (&"dirty".into(), &MIB.into())
        );
        assert_eq!(
            desk["rates"]["writes_per_second"], 0.0,
            "written before the first look"
        );
    }
    daemon.stop();
}

/// Fails when: the page hides the lines above it, or the terminal is not given back.
#[test]
fn a_trial_shows_top_below_its_lines_and_gives_the_terminal_back() {
    let test = "a_trial_shows_top_below_its_lines_and_gives_the_terminal_back";
    if !have(test, &["tmux", "stty"]) {
        return;
    }
    let rig = prepare();
    let terminal = Terminal::new(&rig, 120, 30);
    let image = rig.dir.join("desk-001.img");
    let (directory, image) = (rig.dir.display(), image.display());
    let program = env!("CARGO_BIN_EXE_tenuto");
    let line = format!("clear; TMPDIR={directory} {program} try {image} --cache 256MiB");
    terminal.press(&[&line, "Enter"]);
    terminal.shows("READ/s");
    terminal.shows("1 volume: 1 clean");
    terminal.shows("nbd+unix:///disk?socket=");
    terminal.press(&["q"]);
    terminal.shows("has everything that was written");
    terminal.is_restored();
}
