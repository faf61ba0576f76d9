//! The command line as a process: what it refuses before it asks for a driver, and what it does with its files.
#![cfg(all(unix, feature = "cli"))]

#[path = "scripted/compile.rs"]
mod scripted;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

const SHAPE: [usize; 4] = [1, 3, 1, 64];

/// A folder of one test, with an input file that lacks o.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("command_line_{test}_{}", std::process::id())));
        fs::create_dir_all(&folder.0).unwrap();
        let zeros = vec![0; 2 * SHAPE.iter().product::<usize>()];
        let tensor = || TensorView::new(Dtype::F16, SHAPE.to_vec(), &zeros).unwrap();
        let bytes = safetensors::serialize(["q", "k", "v"].map(|name| (name, tensor())), None).unwrap();
        fs::write(folder.path("input"), bytes).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The command on the input file, where there is no driver.
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hopper-attention"));
        command.arg(self.path("input")).env("HOPPER_ATTENTION_DRIVER", "/nonexistent/libcuda.so.1").env_remove("HOPPER_ATTENTION_PTX_DIR");
        command
    }

    fn write_to(&self, name: &str) -> Output {
        self.command().arg("-o").arg(self.path(name)).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Fails unless the command ended with status 2 and one line that says `message`.
fn refused(output: &Output, message: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.starts_with("error: ") && text.contains(message) && text.lines().count() == 1, "{text}");
}

#[test]
fn the_input_is_no_output() {
    let folder = Folder::new("input");
    fs::hard_link(folder.path("input"), folder.path("hard")).unwrap();
    symlink("input", folder.path("soft")).unwrap();
    let before = fs::read(folder.path("input")).unwrap();
    for name in ["input", "hard", "soft", "../input"] {
        let name = if name.starts_with("..") { format!("../{}/input", folder.0.file_name().unwrap().display()) } else { name.into() };
        refused(&folder.write_to(&name), "it is the input file");
    }
    assert_eq!(fs::read(folder.path("input")).unwrap(), before);
}

#[test]
fn only_regular_files_are_outputs() {
    let folder = Folder::new("irregular");
    symlink("/dev/null", folder.path("device")).unwrap();
    fs::create_dir(folder.path("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap().success());
    for name in ["/dev/null", "device", "folder", "pipe"] {
        refused(&folder.write_to(name), "it is no regular file");
    }
    assert!(fs::symlink_metadata(folder.path("device")).unwrap().is_symlink());
    refused(&folder.write_to("nowhere/output"), "No such file or directory");
}

#[test]
fn without_results_the_output_stays_as_it_was() {
    let folder = Folder::new("unchanged");
    fs::write(folder.path("old"), "old").unwrap();
    symlink("behind", folder.path("soft")).unwrap();
    for name in ["old", "new", "soft"] {
        refused(&folder.write_to(name), "/nonexistent/libcuda.so.1");
    }
    assert_eq!(fs::read(folder.path("old")).unwrap(), b"old");
    assert!(!folder.path("new").exists() && !folder.path("behind").exists() && folder.path("soft").is_symlink());
}

/// The scripted driver computes nothing, but what it is asked to copy is written.
#[test]
fn results_go_where_the_path_leads() {
    let driver = scripted::compile();
    let folder = Folder::new("written");
    fs::write(folder.path("old"), vec![1; 10000]).unwrap();
    fs::set_permissions(folder.path("old"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("behind", folder.path("soft")).unwrap();
    let inode = fs::metadata(folder.path("old")).unwrap().ino();
    for name in ["old", "new", "soft"] {
        // The mask is the process's, so a shell sets it.
        let mut command = Command::new("sh");
        command.args(["-c", "umask 027; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_hopper-attention")]).arg(folder.path("input"));
        let output = command.arg("-o").arg(folder.path(name)).env("HOPPER_ATTENTION_DRIVER", &driver).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let bytes = fs::read(folder.path(name)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor("o").unwrap().shape(), SHAPE);
        assert_eq!(fs::metadata(folder.path(name)).unwrap().mode() & 0o777, 0o640);
    }
    fs::remove_file(&driver).unwrap();
    assert_eq!(fs::metadata(folder.path("old")).unwrap().ino(), inode);
    assert!(folder.path("soft").is_symlink() && folder.path("behind").is_file());
}

#[test]
fn what_is_to_be_compared_must_be_there() {
    let folder = Folder::new("compare");
    refused(&folder.command().args(["--compare", "file"]).output().unwrap(), "the file has no tensor 'o'; it has: k, q, v");
}

#[test]
fn a_stdout_that_takes_nothing_is_an_error() {
    let driver = scripted::compile();
    let folder = Folder::new("stdout");
    let mut command = folder.command();
    command.args(["--compare", "exact"]).env("HOPPER_ATTENTION_DRIVER", &driver);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    refused(&command.stdout(full).output().unwrap(), "No space left on device");
    // A pipe without a reader, as `| head` leaves it; nothing is to be said of that.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(2), &b""[..]));
    fs::remove_file(&driver).unwrap();
}

/// Not as the name of an argument that there is not.
#[test]
fn a_number_below_0_is_said_to_be_one() {
    let folder = Folder::new("negative");
    for (flag, words) in [
        ("--window-left", "invalid digit"),
        ("--window-right", "invalid digit"),
        ("--device", "-1 is not in 0..="),
        // These may have a sign as far as their form goes: it is the library that refuses them, once it has a driver.
        ("--softmax-scale", "/nonexistent/libcuda.so.1"),
        ("--softcap", "/nonexistent/libcuda.so.1"),
    ] {
        let output = folder.command().args(["--compare", "exact", flag, "-1"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let named = words.starts_with('/') || text.contains(&format!("invalid value '-1' for '{flag}"));
        assert!(output.status.code() == Some(2) && text.contains(words) && named, "{text}");
    }
}
