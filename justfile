# Shortcuts; each is one command that works without `just` as well.

# Shows this list.
default:
    @just --list

build:
    cargo build --release

# Under two minutes after the build.
quick:
    ./test quick

# Everything, at most 45 minutes.
test:
    ./test

# Full counts, hours.
long:
    ./test long

fmt:
    cargo fmt --all

lint:
    cargo clippy --release --workspace --all-targets -- -D warnings

# One run of the simulator, as a failing test prints it.
sim seed:
    cargo run --release -- sim --seed {{seed}}

demo:
    cargo run --release -- demo
