//! The binary of the command `netnice`; the library contains all of its code.

fn main() -> std::process::ExitCode {
    netnice_cli::main()
}
