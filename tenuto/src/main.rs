//! The binary. Everything it does is in the library.

fn main() -> std::process::ExitCode {
    tenuto::cli::main()
}
