//! Watching guests over QMP, against a monitor that is played here, so that it can be cut at any
//! moment. The real one is in `guest`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{EXIT_USAGE, Rig, wait_until};

const WRITTEN: [u8; 4096] = [7; 4096];
const CLEAN: [u8; 4096] = [0; 4096];
const PATIENCE: Duration = Duration::from_secs(60);

/// QEMU's side of one connection.
struct Monitor {
    stream: BufReader<UnixStream>,
}

/// The next connection of a daemon, which has to come.
fn accepted(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).expect("a listener");
    let mut stream = None;
    wait_until("the daemon connects", PATIENCE, || {
        stream = listener.accept().ok();
        stream.is_some()
    });
    let (stream, _) = stream.expect("just seen");
    stream.set_nonblocking(false).expect("a stream");
    stream
}

impl Monitor {
    /// Takes the daemon's connection, up to the end of the handshake. One that was given up before
    /// its turn came is passed over, as QEMU does.
    fn accept(listener: &UnixListener) -> Monitor {
        loop {
            let stream = accepted(listener);
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let mut monitor = Monitor {
                stream: BufReader::new(stream),
            };
            let greeting = json!({ "QMP": { "version": {}, "capabilities": ["oob"] } });
            if monitor.try_say(&greeting).is_ok() && monitor.stream.fill_buf().is_ok_and(some) {
                monitor.answers("qmp_capabilities", &json!({}));
                return monitor;
            }
        }
    }

    fn try_say(&mut self, message: &Value) -> std::io::Result<()> {
        let line = format!("{message}\r\n");
        self.stream.get_mut().write_all(line.as_bytes())
    }

    fn say(&mut self, message: &Value) {
        self.try_say(message).expect("say it");
    }

    /// Waits for a command.
    fn hears(&mut self, name: &str) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a command");
        let command: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(command["execute"], name, "{command}");
        command["id"].clone()
    }

    fn answers(&mut self, name: &str, result: &Value) {
        let id = self.hears(name);
        self.say(&json!({ "return": result, "id": id }));
    }

    fn event(&mut self, name: &str, data: &Value) {
        let timestamp = json!({ "seconds": 1, "microseconds": 2 });
        self.say(&json!({ "timestamp": timestamp, "event": name, "data": data }));
    }

    fn guest_resets(&mut self) {
        self.event("RESET", &json!({ "guest": true, "reason": "guest-reset" }));
        self.answers(
            "query-status",
            &json!({ "running": true, "status": "running" }),
        );
    }

    fn machine_resets(&mut self) {
        let id = self.hears("system_reset");
        let data = json!({ "guest": false, "reason": "host-qmp-system-reset" });
        self.say(&json!({ "return": {}, "id": id }));
        self.event("RESET", &data);
    }
}

fn some(bytes: &[u8]) -> bool {
    !bytes.is_empty()
}

fn volume(rig: &mut Rig, name: &str, socket: &Path) {
    let image = rig.image(&format!("{name}.img"), 8 << 20);
    let lines = format!("reset-on = \"guest-reset\"\nqmp = \"{}\"", socket.display());
    rig.volume(name, &image, "ephemeral", &lines);
}

/// Fails when: the guest is not told to go on.
#[test]
fn a_guest_is_stopped_while_its_disks_are_reset_also_over_kills_of_the_daemon() {
    let mut rig = Rig::new();
    let socket = rig.dir.join("qmp.sock");
    volume(&mut rig, "one", &socket);
    volume(&mut rig, "two", &socket);
    let listener = UnixListener::bind(&socket).expect("listen");
    let mut daemon = rig.serve();
    let mut monitor = Monitor::accept(&listener);
    let (mut one, mut two) = (rig.connect("one"), rig.connect("two"));
    one.write(0, &WRITTEN);
    two.write(0, &WRITTEN);
    monitor.guest_resets();
    let id = monitor.hears("stop");
    assert_eq!(one.read(0, 4096), WRITTEN, "not before it is stopped");
    monitor.say(&json!({ "return": {}, "id": id }));
    monitor.machine_resets();
    // The connections stay, and both disks are clean before the guest goes on.
    assert_eq!(one.read(0, 4096), CLEAN);
    assert_eq!(two.read(0, 4096), CLEAN);
    monitor.answers("cont", &json!({}));
    wait_until("it is counted", PATIENCE, || {
        rig.show("two")["overlay"]["qmp"]["resets"] == 1
    });
    // A firmware may reset the machine again before it reads anything: nothing is to be done.
    monitor.event("RESET", &json!({ "guest": true, "reason": "guest-reset" }));
    // Killed with the guest stopped: the next daemon does it all.
    one.write(0, &WRITTEN);
    monitor.guest_resets();
    monitor.hears("stop");
    daemon.kill();
    daemon = rig.serve();
    monitor = Monitor::accept(&listener);
    let mut one = rig.connect("one");
    assert_eq!(one.read(0, 4096), WRITTEN);
    monitor.answers("stop", &json!({}));
    monitor.machine_resets();
    monitor.hears("cont");
    assert_eq!(one.read(0, 4096), CLEAN);
    // Killed before it was told that the guest goes on: what the guest writes now stays.
    one.write(4096, &WRITTEN);
    daemon.kill();
    let daemon = rig.serve();
    let mut monitor = Monitor::accept(&listener);
    monitor.event("NIC_RX_FILTER_CHANGED", &json!({}));
    monitor.answers("cont", &json!({}));
    assert_eq!(rig.connect("one").read(4096, 4096), WRITTEN);
    daemon.stop();
}

/// Fails when: every end of QEMU counts as the guest's own.
#[test]
fn a_guest_that_switches_itself_off_has_ended_and_one_that_is_ended_has_not() {
    let mut rig = Rig::new();
    let socket = rig.dir.join("qmp.sock");
    volume(&mut rig, "disk", &socket);
    let listener = UnixListener::bind(&socket).expect("listen");
    let daemon = rig.serve();
    for (guest, found) in [(false, WRITTEN), (true, CLEAN)] {
        let mut monitor = Monitor::accept(&listener);
        let mut client = rig.connect("disk");
        client.write(0, &WRITTEN);
        monitor.event("SHUTDOWN", &json!({ "guest": guest, "reason": "any" }));
        // Its end is seen when the monitor is tried again.
        drop(monitor);
        wait_until("the monitor is gone", PATIENCE, || {
            rig.show("disk")["overlay"]["qmp"]["connected"] == false
        });
        assert_eq!(rig.show("disk")["overlay"]["ended"], guest);
        client.disconnect();
        rig.gone_clients("disk");
        assert_eq!(rig.connect("disk").read(0, 4096), found, "guest: {guest}");
    }
    daemon.stop();
}

/// Fails when: a monitor that was left is not tried again.
#[test]
fn a_monitor_that_talks_nonsense_is_left_and_tried_again() {
    let mut rig = Rig::new();
    let socket = rig.dir.join("qmp.sock");
    volume(&mut rig, "disk", &socket);
    let listener = UnixListener::bind(&socket).expect("listen");
    let daemon = rig.serve();
    let nonsense: [Vec<u8>; 3] = [b"hello\n".to_vec(), vec![b'{'; 1 << 20], vec![0; 64]];
    for bytes in nonsense {
        let mut stream = accepted(&listener);
        // It may hang up in the middle of this.
        let _ = stream.write_all(&bytes);
        let _ = stream.write_all(b"\n");
    }
    let mut monitor = Monitor::accept(&listener);
    rig.connect("disk").write(0, &WRITTEN);
    monitor.guest_resets();
    monitor.answers("stop", &json!({}));
    monitor.machine_resets();
    monitor.answers("cont", &json!({}));
    assert_eq!(rig.connect("disk").read(0, 4096), CLEAN);
    daemon.stop();
}

#[test]
fn guest_reset_without_a_monitor_is_an_error_with_its_line() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 8 << 20);
    rig.volume("disk", &image, "ephemeral", "reset-on = \"guest-reset\"");
    rig.write_config();
    let said = rig.refused(&["config", "--check"], EXIT_USAGE);
    let text = std::fs::read_to_string(rig.config_path()).expect("read");
    let line = text.lines().position(|line| line.starts_with("reset-on"));
    let place = format!(":{}: reset-on: ", line.expect("there") + 1);
    assert!(said.contains(&place) && said.contains("qmp = "), "{said}");
}
