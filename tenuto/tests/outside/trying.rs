//! `tenuto try`: one image behind a temporary cache. What is at the image and what is left behind
//! when the trial ends: by the user, by the end of its daemon, or because the image takes nothing.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::common::{
    EXIT_DONE, EXIT_FAILED, EXIT_USAGE, PATIENCE, Rig, binary, denied, end, is_root, nbd, skip,
    text_of, wait_until,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A small cache, so that a trial begins at once.
const CACHE: [&str; 2] = ["--cache", "256MiB"];

/// A trial that says what it does in JSON.
struct Trial {
    child: Child,
    out: BufReader<ChildStdout>,
    document: Value,
}

impl Trial {
    fn command(rig: &Rig, image: &Path, options: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("try").arg(image).args(CACHE).args(options);
        command.arg("--json").env("TMPDIR", &rig.dir);
        command
            .env_remove("TENUTO_CONFIG")
            .env_remove("TENUTO_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        command
    }

    fn start(command: &mut Command) -> Trial {
        let mut child = command.spawn().expect("run tenuto");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut text = String::new();
        while !text.ends_with("\n}\n") {
            let read = out.read_line(&mut text).expect("its output");
            assert!(read > 0, "it has ended: {text}{}", said(&mut child));
        }
        let document = serde_json::from_str(&text).expect("a document");
        Trial {
            child,
            out,
            document,
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.document[key].as_str().expect("a path").into()
    }

    fn connect(&self) -> nbd::Client {
        nbd::Client::connect(&self.path("nbd_socket"), "").expect("connect")
    }

    /// The process of its daemon.
    fn daemon(&self) -> i32 {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("its children");
        let [child] = children.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("one child: {children:?}");
        };
        child.parse().expect("a number")
    }

    fn end(&self) {
        end(self.child.id() as i32);
    }

    /// Its exit code, and what it said last.
    fn ended(mut self) -> (Option<i32>, String) {
        let said = said(&mut self.child);
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("its output");
        let status = self.child.wait().expect("its end");
        (status.code(), said)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // It stops its daemon when it ends, and the kernel does where it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything on standard error, which ends with the process.
fn said(child: &mut Child) -> String {
    let mut said = String::new();
    let mut error = child.stderr.take().expect("a pipe");
    error.read_to_string(&mut said).expect("its words");
    said
}

/// Names in the directory of the test that are not its own.
fn left(rig: &Rig, image: &Path) -> Vec<String> {
    let own = ["run", "state", "stage"];
    let entries = fs::read_dir(&rig.dir).expect("list").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let image = image.file_name().map(|name| name.to_string_lossy());
    names
        .filter(|name| !own.contains(&name.as_str()) && Some(name.as_str()) != image.as_deref())
        .collect()
}

/// Whether a range of the image has this byte everywhere.
fn holds(image: &Path, offset: u64, bytes: u64, value: u8) -> bool {
    let mut found = vec![0; bytes as usize];
    let file = fs::File::open(image).expect("open the image");
    file.read_exact_at(&mut found, offset).expect("read it");
    found.iter().all(|it| *it == value)
}

/// Fails when: the trial ends without its destage, or leaves its directory or the ledger.
#[test]
fn what_was_written_in_a_trial_is_in_the_image_and_nothing_is_left_behind() {
    let rig = Rig::new();
    let image = rig.image("try.img", 64 * MIB);
    let trial = Trial::start(&mut Trial::command(&rig, &image, &[]));
    let document = &trial.document;
    assert_eq!(document["state"], "ready");
    assert_eq!(document["policy"], "write-back");
    let uri = document["nbd_uri"].as_str().expect("a URI");
    assert!(uri.starts_with("nbd+unix:///disk?socket="), "{uri}");
    let qemu = document["qemu"].as_str().expect("arguments");
    let socket = trial.path("vhost_socket");
    assert!(
        qemu.contains(&format!("path={}", socket.display())),
        "{qemu}"
    );
    let stage = Path::new("/dev/shm").join(trial.path("directory").file_name().expect("a name"));
    // A client that stays, as a guest does.
    let mut client = trial.connect();
    client.write(MIB, &[7; MIB as usize]);
    assert!(holds(&image, MIB, MIB, 0), "in the cache alone");
    trial.end();
    let (code, said) = trial.ended();
    assert_eq!(code, Some(EXIT_DONE), "{said}");
    assert!(holds(&image, MIB, MIB, 7), "at the image");
    assert_eq!(left(&rig, &image), Vec::<String>::new());
    assert!(!stage.exists(), "its stage");
}

/// Fails when: the data of a daemon that was killed is not brought to the image.
#[test]
fn a_trial_whose_daemon_is_killed_brings_all_that_was_acknowledged_to_the_image() {
    let rig = Rig::new();
    let image = rig.image("try.img", 64 * MIB);
    let trial = Trial::start(&mut Trial::command(&rig, &image, &[]));
    trial.connect().write(MIB, &[7; MIB as usize]);
    crate::common::signal(trial.daemon(), libc::SIGKILL);
    let (code, said) = trial.ended();
    assert_eq!(code, Some(EXIT_FAILED), "{said}");
    assert!(said.contains("the daemon has ended"), "{said}");
    assert!(holds(&image, MIB, MIB, 7), "at the image");
    assert_eq!(left(&rig, &image), Vec::<String>::new());
}

/// Fails when: the cache is removed although the image does not have its data.
#[test]
fn a_trial_whose_image_takes_nothing_keeps_the_data_and_names_the_command_that_finishes() {
    let rig = Rig::new();
    let image = rig.image("try.img", 2 * GIB);
    let mut command = Trial::command(&rig, &image, &[]);
    // Writes beyond it fail, as on a full file system.
    denied::larger_files(&mut command, GIB);
    let trial = Trial::start(&mut command);
    let at = GIB + MIB;
    trial.connect().write(at, &[7; MIB as usize]);
    let socket = trial.path("nbd_socket");
    trial.end();
    wait_until("its daemon stops", PATIENCE, || !socket.exists());
    trial.end();
    let (code, said) = trial.ended();
    assert_eq!(code, Some(EXIT_FAILED), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("nothing is lost"), "{said}");
    let commands: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
    let [finish, remove] = commands[..] else {
        panic!("two commands: {last}");
    };
    assert!(holds(&image, at, MIB, 0), "not at the image");
    let mut words = finish.split(' ');
    assert_eq!(words.next(), Some("tenuto"));
    let done = Command::new(binary()).args(words).output();
    let done = done.expect("run tenuto");
    assert_eq!(done.status.code(), Some(EXIT_DONE), "{}", text_of(&done));
    assert!(holds(&image, at, MIB, 7), "at the image");
    crate::common::run("sh", &["-c", remove]);
    assert_eq!(left(&rig, &image), Vec::<String>::new());
}

/// Fails when: the policy of the trial is not the one that was asked for.
#[test]
fn an_ephemeral_trial_never_writes_its_image() {
    let rig = Rig::new();
    let image = rig.image("try.img", 64 * MIB);
    let command = &mut Trial::command(&rig, &image, &["--policy", "ephemeral"]);
    let trial = Trial::start(command);
    let mut client = trial.connect();
    client.write(MIB, &[7; MIB as usize]);
    client.flush();
    assert_eq!(client.read(MIB, 4096), vec![7; 4096]);
    trial.end();
    let (code, said) = trial.ended();
    assert_eq!(code, Some(EXIT_DONE), "{said}");
    assert!(holds(&image, 0, 64 * MIB, 0), "as it was");
    assert_eq!(left(&rig, &image), Vec::<String>::new());
}

/// Fails when: a trial that is refused leaves what it made.
#[test]
fn an_image_that_is_refused_is_not_tried_and_nothing_is_left() {
    let rig = Rig::new();
    let image = rig.image("try.img", 64 * MIB);
    let refused = |name: &Path, options: &[&str], why: &str| {
        let done = Trial::command(&rig, name, options).output();
        let done = done.expect("run tenuto");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(EXIT_USAGE), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        let mut left = left(&rig, &image);
        left.retain(|name| name != "foreign.img");
        left
    };
    let nothing = Vec::<String>::new();
    let missing = rig.dir.join("missing.img");
    assert_eq!(refused(&missing, &[], "no such file"), nothing);
    let foreign = rig.image("foreign.img", MIB);
    fs::write(&foreign, b"KDMV").expect("write it");
    assert_eq!(refused(&foreign, &[], "give --format raw"), nothing);
    assert_eq!(
        refused(&image, &["--policy", "fast"], "write-back"),
        nothing
    );
    let trial = Trial::start(&mut Trial::command(&rig, &image, &[]));
    let directory = trial.path("directory");
    let directory = directory.file_name().expect("a name").to_string_lossy();
    let beside = refused(&image, &[], "in use by tenuto");
    let mut others = beside.iter().filter(|name| !name.starts_with("try.img"));
    assert_eq!(others.next().map(String::as_str), Some(&*directory));
    assert_eq!(others.next(), None);
    trial.end();
    assert_eq!(trial.ended().0, Some(EXIT_DONE));
}

#[test]
fn a_user_who_is_not_in_the_group_of_the_sockets_is_told_what_would_be_right() {
    let test = "a_user_who_is_not_in_the_group_of_the_sockets_is_told_what_would_be_right";
    if !is_root() {
        return skip(test, "only root can run a daemon as a user of no group");
    }
    let rig = Rig::new();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&rig.dir, open).expect("let others enter");
    let path = rig.write_config();
    let text = fs::read_to_string(&path).expect("read it");
    let own = text.lines().find(|line| line.starts_with("group"));
    let other = text.replace(own.expect("a group"), "group = \"4242\"");
    fs::write(&path, other).expect("write it");
    let mut command = Command::new(binary());
    // Numbers of no user: the text says which groups the process is in, and there is no other.
    command.uid(4243).gid(4243).arg("serve");
    let Ok(done) = command.env("TENUTO_CONFIG", &path).output() else {
        return skip(test, "other users cannot run this build");
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(EXIT_USAGE), "{said}");
    let expected = "group 4242: this user is not in it and cannot give sockets to it; add the user";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn without_a_configuration_serve_names_the_trial_and_the_smallest_one() {
    let test = "without_a_configuration_serve_names_the_trial_and_the_smallest_one";
    if Path::new("/etc/tenuto/tenuto.toml").exists() {
        return skip(test, "this host has a configuration");
    }
    let mut command = Command::new(binary());
    command.arg("serve").env_remove("TENUTO_CONFIG");
    let done = command.output().expect("run tenuto");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(EXIT_USAGE), "{said}");
    for part in [
        "`tenuto try IMAGE`",
        "[cache] with path",
        "[[volume]] with name",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(said.lines().count(), 1, "{said}");
}
