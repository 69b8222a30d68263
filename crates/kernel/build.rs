//! Compiles the eBPF programs with clang, and writes the Rust mirrors of `bpf/abi.h`,
//! `bpf/direct.h` and `bpf/usage.h` and the hash `LAYOUT` of the maps; all to `OUT_DIR`.
//!
//! The mirrors are generated, so the keys and values of the maps have a single definition. The head
//! of `abi.h` describes the form that this script reads. No binary is ever committed. The build
//! fails if clang (or the program that `CLANG` names) or a header of libbpf is missing.

use std::{env, fmt::Write as _, fs, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    let header = |name: &str| {
        fs::read_to_string(Path::new("bpf").join(name))
            .unwrap_or_else(|error| panic!("bpf/{name} is not readable: {error}"))
    };
    let (abi, maps) = (header("abi.h"), header("maps.h"));
    let limits = mirror("abi.h", &abi) + &layout(&[&abi, &maps]);
    fs::write(out.join("abi.rs"), limits).expect("OUT_DIR is writable");
    for name in ["direct", "usage"] {
        let file = format!("{name}.h");
        let mirrored = mirror(&file, &header(&file));
        fs::write(out.join(format!("{name}.rs")), mirrored).expect("OUT_DIR is writable");
    }
    for program in ["netnice", "direct", "usage"] {
        compile(program, out);
    }
}

fn compile(program: &str, out: &Path) {
    let source = format!("bpf/{program}.bpf.c");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let mut command = Command::new(&clang);
    command.args([
        "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
    ]);
    // Debian keeps asm/types.h in a folder named after the machine's triplet.
    for triplet in ["x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu"] {
        let folder = format!("/usr/include/{triplet}");
        if Path::new(&folder).is_dir() {
            command.arg(format!("-I{folder}"));
        }
    }
    let done = command
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(out.join(format!("{program}.bpf.o")))
        .status();
    match done {
        Ok(status) if status.success() => {}
        Ok(status) => {
            panic!("{clang} could not compile {source} ({status}); it needs libbpf-dev")
        }
        Err(error) => panic!(
            "{clang} is needed to compile the eBPF programs: {error}; `apt-get install clang libbpf-dev`"
        ),
    }
}

/// The Rust mirror of a header: constants, and `#[repr(C)]` structs with their sizes.
fn mirror(name: &str, header: &str) -> String {
    let mut rust = format!("// Generated from bpf/{name}.\n");
    let mut lines = header.lines().map(strip_comment);
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("#define ") {
            constant(&mut rust, rest);
        } else if let Some(name) = line
            .strip_prefix("struct ")
            .and_then(|l| l.strip_suffix(" {"))
        {
            let body: Vec<&str> = lines.by_ref().take_while(|l| *l != "};").collect();
            structure(&mut rust, name, &body);
        }
    }
    rust
}

/// The identifier of the layout of the maps: a hash (FNV-1a) of the headers, which changes by
/// itself when a header changes. A comment does not count from its `/*` to the end of that line.
/// Further lines of a comment count.
fn layout(headers: &[&str]) -> String {
    let lines = headers
        .iter()
        .flat_map(|text| text.lines().map(strip_comment));
    let bytes = lines.flat_map(|line| line.bytes().chain([b'\n']));
    let number = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("#[allow(missing_docs)]\npub const LAYOUT: &str = \"{number:016x}\";\n")
}

fn strip_comment(line: &str) -> &str {
    line.split("/*").next().unwrap_or_default().trim()
}

fn constant(rust: &mut String, definition: &str) {
    let mut words = definition.split_whitespace();
    if let (Some(name), Some(value)) = (words.next(), words.next()) {
        let _ = writeln!(
            rust,
            "#[allow(missing_docs, dead_code)]\npub const {name}: u32 = {value};"
        );
    }
}

fn structure(rust: &mut String, name: &str, body: &[&str]) {
    let name = camel(name);
    let _ = writeln!(
        rust,
        "#[allow(missing_docs, dead_code)]\n#[repr(C)]\n#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]\npub struct {name} {{"
    );
    let mut sizes = Vec::new();
    for field in body.iter().filter(|l| !l.is_empty()) {
        let field = field.trim_end_matches(';');
        let (kind, field) = field
            .rsplit_once(' ')
            .unwrap_or_else(|| panic!("field `{field}` of {name}"));
        let kind = match kind {
            "__u8" => "u8".into(),
            "__u16" => "u16".into(),
            "__u32" => "u32".into(),
            "__u64" => "u64".into(),
            other => camel(
                other
                    .strip_prefix("struct ")
                    .unwrap_or_else(|| panic!("type `{other}` in {name}")),
            ),
        };
        let (field, kind) = match field.split_once('[') {
            Some((field, count)) => (field, format!("[{kind}; {}]", count.trim_end_matches(']'))),
            None => (field, kind),
        };
        let _ = writeln!(rust, "    pub {field}: {kind},");
        sizes.push(format!("size_of::<{kind}>()"));
    }
    let _ = writeln!(
        rust,
        "}}\n// SAFETY: plain integers without holes (the sizes of the fields add up), any bits are a value."
    );
    let _ = writeln!(rust, "unsafe impl aya::Pod for {name} {{}}");
    let _ = writeln!(
        rust,
        "const _: () = assert!(size_of::<{name}>() == {});",
        sizes.join(" + ")
    );
}

fn camel(name: &str) -> String {
    name.split('_')
        .map(|word| {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        })
        .collect()
}
