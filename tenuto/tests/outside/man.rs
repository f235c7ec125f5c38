//! Manual pages and completions, held against the programs that read them.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{EXIT_UNREACHABLE, Rig, binary, have, on_path, text_of};

#[test]
fn manual_pages_are_read_without_a_warning_and_there_is_one_for_each_command() {
    let test = "manual_pages_are_read_without_a_warning_and_there_is_one_for_each_command";
    if !have(test, &["man"]) {
        return;
    }
    let rig = Rig::new();
    let place = rig.dir.join("man1");
    rig.done(&["man", "--dir", &place.to_string_lossy()]);
    let mut count = 0;
    for entry in std::fs::read_dir(&place).unwrap() {
        let path = entry.unwrap().path();
        let output = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
            .arg(&path)
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "80")
            .env("MANROFFSEQ", "")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", path.display());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "", "{}", path.display());
        count += 1;
    }
    assert!(count > 40, "{count} pages");
    for page in [
        "tenuto.1",
        "tenuto-volume-destage.1",
        "tenuto-top.1",
        "tenuto.toml.5",
    ] {
        assert!(place.join(page).exists(), "{page}");
    }
    assert!(rig.done(&["man"]).starts_with(".ie"), "tenuto(1) itself");
}

/// What bash would offer for a line that ends in its last word, by the function that it was told
/// to ask.
fn offered(rig: &Rig, words: &[&str]) -> Vec<String> {
    let program = binary();
    let last = words.len() - 1;
    // Bash takes "=" for a word of its own, and gives the function what comes after it.
    let current = words[last].trim_start_matches('=');
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "PATH='{place}':$PATH; source <(tenuto completions bash); set -- $(complete -p tenuto); \
         while [ \"$1\" != -F ]; do shift; done; COMP_WORDS=({}); COMP_CWORD={last}; \
         \"$2\" tenuto '{current}' '{}'; printf '%s\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words[last - 1],
        place = Path::new(&program).parent().unwrap().display(),
    );
    let output = Command::new("bash")
        .args(["--norc", "--noprofile", "-u", "-c", &script])
        .env("TENUTO_CONFIG", rig.config_path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(output.stderr.is_empty(), "{}", text_of(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    if !have("bash_completes_commands_and_options", &["bash"]) {
        return;
    }
    let rig = Rig::new();
    rig.write_config();
    assert_eq!(offered(&rig, &["tenuto", "eve"]), ["events"]);
    assert_eq!(offered(&rig, &["tenuto", "volume", "des"]), ["destage"]);
    assert_eq!(
        offered(&rig, &["tenuto", "cache", "verify", "--js"]),
        ["--json"]
    );
    assert_eq!(offered(&rig, &["tenuto", "completions", "zs"]), ["zsh"]);
}

#[test]
fn bash_completes_the_names_of_volumes_while_a_daemon_is_there() {
    if !have(
        "bash_completes_the_names_of_volumes_while_a_daemon_is_there",
        &["bash"],
    ) {
        return;
    }
    let mut rig = Rig::new();
    for name in ["desk-1", "desk-2", "gold"] {
        let image = rig.image(&format!("{name}.img"), 1 << 20);
        rig.volume(name, &image, "write-back", "");
    }
    rig.write_config();
    // Nobody answers: what is offered has no name in it, and nothing is said.
    let without = offered(&rig, &["tenuto", "volume", "show", "des"]);
    assert_eq!(without.concat(), "");
    rig.refused(&["volume", "ls", "--names"], EXIT_UNREACHABLE);

    let daemon = rig.serve();
    assert_eq!(
        rig.done(&["volume", "ls", "--names"]),
        "desk-1\ndesk-2\ngold\n"
    );
    let desks = ["desk-1", "desk-2"];
    for verb in [
        "show",
        "set",
        "rm",
        "destage",
        "flush",
        "resize",
        "map",
        "accept-loss",
        "takeover",
    ] {
        assert_eq!(
            offered(&rig, &["tenuto", "volume", verb, "de"]),
            desks,
            "{verb}"
        );
    }
    let all = ["desk-1", "desk-2", "gold"];
    assert_eq!(offered(&rig, &["tenuto", "volume", "show", ""]), all);
    assert_eq!(
        offered(&rig, &["tenuto", "volume", "destage", "--wait", "g"]),
        ["gold"]
    );
    assert_eq!(
        offered(&rig, &["tenuto", "events", "--volume", "g"]),
        ["gold"]
    );
    assert_eq!(
        offered(&rig, &["tenuto", "events", "--volume", "=", "g"]),
        ["gold"]
    );
    let lose = ["tenuto", "volume", "rm", "gold", "--discard-dirty", "="];
    assert_eq!(offered(&rig, &lose), all);
    // Where no name belongs there is none.
    assert_eq!(
        offered(&rig, &["tenuto", "volume", "show", "--qe"]),
        ["--qemu"]
    );
    for words in [
        ["volume", "add", "de"],
        ["cache", "verify", "de"],
        ["volume", "ls", "de"],
    ] {
        let offered = offered(&rig, &[&["tenuto"], &words[..]].concat());
        assert_eq!(offered.concat(), "", "{words:?}");
    }
    // The line says which daemon is asked.
    let socket = rig.run_dir().join("tenuto.sock").display().to_string();
    let (none, here) = (
        ["--socket", "=", "/none"],
        ["--socket", "=", socket.as_str()],
    );
    let line = |option: [&str; 3]| {
        let words = [&["tenuto"], &option[..], &["volume", "show", "g"]].concat();
        offered(&rig, &words).concat()
    };
    assert_eq!((line(none), line(here)), (String::new(), "gold".into()));
    daemon.stop();
}

#[test]
fn scripts_of_other_shells_are_valid_where_the_shell_is_installed() {
    let rig = Rig::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = rig.dir.join(shell);
        std::fs::write(&script, rig.done(&["completions", shell])).unwrap();
        if on_path(shell) {
            crate::common::run(shell, &["-n", &script.to_string_lossy()]);
        }
    }
}
