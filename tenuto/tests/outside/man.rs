//! Manual pages and completions, held against the programs that read them.

use std::process::{Command, Stdio};

use crate::common::{Rig, have, text_of};

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

/// What bash would offer for a line that ends in its last word.
fn offered(rig: &Rig, words: &[&str]) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_tenuto");
    let last = words.len() - 1;
    let script = format!(
        "source <('{program}' completions bash); COMP_WORDS=({}); COMP_CWORD={last}; \
         _tenuto tenuto '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words[last],
        words[last - 1],
    );
    let output = Command::new("bash")
        .args(["--norc", "--noprofile", "-eu", "-c", &script])
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
