//! The command `netnice`; all of it is in the library.

fn main() -> std::process::ExitCode {
    netnice_cli::main()
}
