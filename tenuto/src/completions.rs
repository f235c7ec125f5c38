//! `tenuto completions`: scripts that complete commands, options and the names of volumes.
//!
//! Owns what is added to the scripts that are made from the commands themselves. Always true:
//! which words take the name of a volume is found in the commands, so that a new verb needs no
//! line here; names are asked for when they are wanted, of the daemon that the line speaks to,
//! and where none answers there are none and nothing is said. Deliberately absent: other values
//! than names; keys and their values are in `tenuto config --explain`.

use crate::Cli;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use host::cli::output;
use host::error::Result;

/// A word of the command line after which the name of a volume comes.
struct Taker {
    /// The commands before it.
    path: Vec<String>,
    /// The option it belongs to; `None` = it stands by itself.
    option: Option<String>,
}

pub fn run(shell: Shell) -> Result<()> {
    output::write(&script(shell))
}

fn script(shell: Shell) -> String {
    let mut command = shown(&Cli::command());
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "tenuto", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let takers = takers(&command);
    match shell {
        Shell::Bash => script + &bash(&takers),
        Shell::Zsh => zsh(&script, &takers),
        Shell::Fish => script + &fish(&takers),
        _ => script,
    }
}

/// The command without what is hidden: the library would offer that as well.
fn shown(command: &Command) -> Command {
    // The library keeps names that live as long as the program, which ends after this.
    let kept = |name: &str| -> &'static str { String::leak(name.to_owned()) };
    let inner = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut copy = Command::new(kept(command.get_name()))
        .args(command.get_arguments().cloned())
        .visible_aliases(command.get_visible_aliases().map(kept).collect::<Vec<_>>())
        .subcommands(inner.map(shown).collect::<Vec<_>>());
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    match command.get_version() {
        Some(version) => copy.version(kept(version)),
        None => copy,
    }
}

/// All words that take the name of a volume that is there.
fn takers(command: &Command) -> Vec<Taker> {
    let mut found = Vec::new();
    look(command, &[], &mut found);
    found
}

fn look(command: &Command, path: &[String], found: &mut Vec<Taker>) {
    for option in command.get_arguments().filter(|option| names_one(option)) {
        found.push(Taker {
            path: path.to_vec(),
            option: option.get_long().map(str::to_owned),
        });
    }
    for inner in command.get_subcommands() {
        for name in inner.get_name_and_visible_aliases() {
            let path = [path, &[name.to_owned()]].concat();
            // A volume that is added is not there yet.
            if inner.get_name() != "add" {
                look(inner, &path, found);
            }
        }
    }
}

/// Whether the value of an argument is the name of a volume.
fn names_one(argument: &Arg) -> bool {
    match argument.is_positional() {
        true => argument
            .get_help()
            .is_some_and(|help| help.to_string().starts_with(POSITIONAL)),
        false => ["volume", "discard_dirty"].contains(&argument.get_id().as_str()),
    }
}

/// How the help of every such word begins.
const POSITIONAL: &str = "Name of the volume";

fn bash(takers: &[Taker]) -> String {
    let case = |option: bool| {
        let which = takers
            .iter()
            .filter(|taker| taker.option.is_some() == option);
        let patterns = which.map(|taker| match &taker.option {
            // What comes between may be the name of a volume.
            Some(name) => format!("\" {}\"*\" --{name}\"", taker.path.join(" ")),
            None => format!("\" {}\"", taker.path.join(" ")),
        });
        patterns.collect::<Vec<_>>().join(" | ")
    };
    BASH.replace("@positional@", &case(false))
        .replace("@options@", &case(true))
}

const BASH: &str = r#"
# Names of volumes beside all that: `path` is the commands before the word, `option` what its value
# would belong to, `ask` the program with what says which daemon.
_tenuto_volumes() {
    _tenuto "$@"
    local i=1 value word path="" option="" last="${COMP_WORDS[COMP_CWORD]-}" wanted=""
    local -a ask=("$1")
    while ((i < COMP_CWORD)); do
        word="${COMP_WORDS[i]}"
        value=$((i + 1))
        case "$word" in
            -c | --config | --socket | --color)
                if [[ "${COMP_WORDS[value]-}" == "=" ]]; then
                    value=$((value + 1))
                fi
                if ((value >= COMP_CWORD)); then
                    return 0
                fi
                if [[ "$word" != --color ]]; then
                    ask+=("$word" "${COMP_WORDS[value]}")
                fi
                i=$((value + 1))
                ;;
            =) i=$((i + 2)) ;;
            -*) i=$((i + 1)) ;;
            *)
                path+=" $word"
                i=$((i + 1))
                ;;
        esac
    done
    option="${COMP_WORDS[COMP_CWORD - 1]-}"
    if [[ "$option" == "=" ]]; then
        option="${COMP_WORDS[COMP_CWORD - 2]-}"
    fi
    case "$path $option" in
        @options@) wanted=1 ;;
    esac
    case "$path" in
        @positional@)
            if [[ "$last" != -* ]]; then
                wanted=1
            fi
            ;;
    esac
    if [[ -z "$wanted" ]]; then
        return 0
    fi
    local names
    names="$("${ask[@]}" volume ls --names 2>/dev/null </dev/null)" || return 0
    local -a found=($(compgen -W "$names" -- "${last#=}"))
    if ((${#found[@]} > 0)); then
        COMPREPLY=("${found[@]}")
    fi
    return 0
}

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)); then
    complete -F _tenuto_volumes -o nosort -o bashdefault -o default tenuto
else
    complete -F _tenuto_volumes -o bashdefault -o default tenuto
fi
"#;

/// The generated script says of each value how it is completed; those of names say `_default`.
fn zsh(script: &str, takers: &[Taker]) -> String {
    let options: Vec<String> = takers
        .iter()
        .filter_map(|taker| Some(format!("'--{}=", taker.option.as_ref()?)))
        .collect();
    let positional = format!(":name -- {POSITIONAL}, ");
    let named = |line: &str| {
        line.contains(&positional) || options.iter().any(|option| line.starts_with(option))
    };
    let mut result = String::new();
    for line in script.lines() {
        if line.starts_with("if [ \"$funcstack[1]\"") {
            result.push_str(ZSH);
        }
        match named(line) {
            true => result.push_str(&line.replace(":_default'", ":_tenuto_volume_names'")),
            false => result.push_str(line),
        }
        result.push('\n');
    }
    result
}

const ZSH: &str = r#"(( $+functions[_tenuto_volume_names] )) ||
_tenuto_volume_names() {
    local -a names
    names=(${(f)"$(tenuto volume ls --names 2>/dev/null </dev/null)"})
    compadd -a names
}

"#;

fn fish(takers: &[Taker]) -> String {
    let mut lines = String::from(FISH);
    for taker in takers {
        let mut condition = String::new();
        if let Some((first, rest)) = taker.path.split_first() {
            condition = format!("__fish_tenuto_using_subcommand {first}");
            for word in rest {
                condition.push_str(&format!("; and __fish_seen_subcommand_from {word}"));
            }
        }
        let option = taker.option.as_ref();
        let option = option.map_or("-f".into(), |name| format!("-l {name} -x"));
        lines.push_str(&format!(
            "complete -c tenuto -n \"{condition}\" {option} -a \"(__fish_tenuto_volume_names)\"\n"
        ));
    }
    lines
}

const FISH: &str = r#"
function __fish_tenuto_volume_names
	tenuto volume ls --names 2>/dev/null </dev/null
end
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_that_takes_a_volume_is_found_in_the_commands() {
        let found = takers(&Cli::command());
        let words = |path: &str, option: Option<&str>| {
            found
                .iter()
                .any(|taker| taker.path.join(" ") == path && taker.option.as_deref() == option)
        };
        for verb in [
            "show", "set", "rm", "destage", "flush", "reset", "commit", "resize", "map",
        ] {
            assert!(words(&format!("volume {verb}"), None), "{verb}");
        }
        assert!(words("volume rm", Some("discard-dirty")));
        assert!(words("events", Some("volume")) && words("recover", Some("volume")));
        assert!(words("volume delete", None) && words("volume delete", Some("discard-dirty")));
        for verb in ["add", "create", "ls", "list"] {
            assert!(!words(&format!("volume {verb}"), None), "{verb}");
        }
    }

    #[test]
    fn in_zsh_every_value_that_is_a_name_is_completed_as_one() {
        let script = script(Shell::Zsh);
        let aliases = 2; // `flush` is `destage`
        let found = takers(&Cli::command());
        let calls = script.matches(":_tenuto_volume_names'").count();
        assert!(calls + aliases >= found.len(), "{calls} of {}", found.len());
        assert_eq!(script.matches("_tenuto_volume_names() {").count(), 1);
    }
}
