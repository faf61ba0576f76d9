//! From the source of the scripted driver to a library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The library, which the caller removes.
pub fn compile() -> PathBuf {
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("scripted_driver_{}_{}", std::process::id(), COMPILED.fetch_add(1, Ordering::Relaxed));
    let (source, library) = (folder.join(&name).with_extension("rs"), folder.join(&name).with_extension("so"));
    std::fs::write(&source, text()).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc)
        .args(["--crate-type", "cdylib", "--edition", "2024", "-Adead_code", "-o"])
        .arg(&library)
        .arg(&source)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&source).unwrap();
    library
}

/// The source of the driver: `library.rs`, and the rest of the functions that the driver table wants.
fn text() -> String {
    let written = include_str!("library.rs");
    let table = include_str!("../../../driver/src/table.rs");
    let names = table.lines().filter_map(|line| line.trim().strip_prefix("fn cu")?.split_once('(').map(|(name, _)| format!("cu{name}")));
    let missing = names.filter(|name| !written.contains(&format!("fn {name}(")));
    let stubs = missing.map(|name| format!("#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> u32 {{ note(\"{name}\".into()) }}\n"));
    written.to_owned() + &stubs.collect::<String>()
}
