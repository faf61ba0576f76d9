//! Builds the PTX of a crate of kernels.

use clap::Parser;
use hopper_attention_builder::{Assembler, Builder, CoreSource, Error, table};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compiles a Rust crate of kernels to PTX for NVIDIA Hopper: one file for each of its kernels.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The folder of the crate's Cargo.toml
    #[arg(value_name = "MANIFEST_DIR", default_value = ".")]
    manifest_dir: PathBuf,
    /// The folder to write NAME.ptx to, for each kernel
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Another package of the workspace that the folder belongs to
    #[arg(long, value_name = "NAME")]
    package: Option<String>,
    /// Features of the crate, separated by commas
    #[arg(long, value_name = "FEATURES", value_delimiter = ',')]
    features: Vec<String>,
    /// Cargo's target folder [default: ptx-build in the one of the crate's workspace]
    #[arg(long, value_name = "DIR")]
    target_dir: Option<PathBuf>,
    /// Where the source of `core` comes from: `auto`, `toolchain`, an archive NAME.tar.xz of Rust's folder `library`, or that folder
    #[arg(long, value_name = "SOURCE", default_value = "auto", value_parser = core_source)]
    core: CoreSource,
    /// A toolchain by its name for rustup [default: the one of the crate's folder]
    #[arg(long, value_name = "NAME")]
    toolchain: Option<String>,
    /// A folder with ptxas and nvdisasm, or a Python environment with NVIDIA's wheels, to look in first
    #[arg(long, value_name = "DIR")]
    tools: Option<PathBuf>,
    /// Fail where there is no ptxas, instead of leaving its part out
    #[arg(long)]
    require_ptxas: bool,
    /// Write the disassembly of each kernel to this folder
    #[arg(long, value_name = "DIR")]
    sass: Option<PathBuf>,
}

fn core_source(text: &str) -> Result<CoreSource, String> {
    Ok(match text {
        "auto" => CoreSource::Auto,
        "toolchain" => CoreSource::Toolchain,
        path if path.ends_with(".tar.xz") => CoreSource::Archive(path.into()),
        path if std::path::Path::new(path).is_dir() => CoreSource::Folder(path.into()),
        path => return Err(format!("{path} is neither auto nor toolchain, nor a .tar.xz file, nor a folder")),
    })
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    let mut builder = Builder::new(arguments.manifest_dir).features(arguments.features).core_source(arguments.core);
    builder = arguments.package.into_iter().fold(builder, Builder::package);
    builder = arguments.target_dir.into_iter().fold(builder, Builder::target_dir);
    builder = arguments.toolchain.into_iter().fold(builder, Builder::toolchain);
    let built = builder.build()?;
    built.warning().iter().for_each(|warning| eprintln!("warning: {warning}"));
    // Written before ptxas judges them, so that a kernel that it refuses can be looked at.
    built.write(&arguments.out)?;
    let (count, out) = (built.kernels.len(), arguments.out.display());
    let Some(assembler) = Assembler::find(&Vec::from_iter(arguments.tools))? else {
        print!("{}", table(&built.kernels, &[]));
        if arguments.require_ptxas {
            return Err(Failure::NoPtxas);
        }
        println!("wrote {count} kernels to {out}, NOT assembled: there is no ptxas in --tools, target/tools, CUDA_HOME or PATH");
        return Ok(());
    };
    let scratch = std::env::temp_dir().join(format!("hopper-attention-build-{}", std::process::id()));
    let judgement = assembler.judge(&built.kernels, &scratch, arguments.sass.as_deref())?;
    if judgement.refused.is_empty() {
        // Whether it can be removed changes no result. What ptxas refuses stays: its messages name the files.
        let _ = std::fs::remove_dir_all(&scratch);
    }
    print!("{}", table(&built.kernels, &judgement.taken));
    judgement.resources()?;
    println!("wrote {count} kernels to {out}; ptxas {} objects to none", assembler.release);
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Build(#[from] Error),
    #[error("there is no ptxas in --tools, target/tools, CUDA_HOME or PATH")]
    NoPtxas,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
