//! The file that the results go to: refused or opened before anything is computed, written after.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::Result;

/// A regular file, open for writing. What it held stays until [`Output::write`], and without it a file that was not there before goes again.
pub struct Output {
    file: File,
    path: PathBuf,
    /// The file to remove, behind any symbolic links.
    made: Option<PathBuf>,
}

impl Output {
    /// Opens or makes the file, behind any symbolic links. Refuses `input`, under whatever name, and what is no regular file.
    pub fn open(path: &Path, input: &Path) -> Result<Self> {
        let cannot = |error: io::Error| format!("cannot write {}: {error}", path.display());
        let missing = match fs::metadata(path) {
            // Asked before it is opened: opening a pipe would wait for a reader.
            Ok(found) if !found.is_file() => return Err(format!("cannot write {}: it is no regular file", path.display()).into()),
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(cannot(error).into()),
        };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(cannot)?;
        let made = if missing { Some(fs::canonicalize(path).map_err(cannot)?) } else { None };
        if same_file(path, input).map_err(cannot)? {
            return Err(format!("cannot write {}: it is the input file", path.display()).into());
        }
        Ok(Self { file, path: path.to_owned(), made })
    }

    /// Makes `bytes` all that the file holds.
    pub fn write(mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(bytes));
        written.map_err(|error| format!("cannot write {}: {error}", self.path.display()))?;
        self.made = None;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // The error that is being reported is the one to know about.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(unix)]
fn same_file(one: &Path, other: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (one, other) = (fs::metadata(one)?, fs::metadata(other)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

#[cfg(not(unix))]
fn same_file(one: &Path, other: &Path) -> io::Result<bool> {
    Ok(fs::canonicalize(one)? == fs::canonicalize(other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_only_when_it_is_written() {
        let folder = std::env::temp_dir().join(format!("hopper-attention-output-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (input, path) = (folder.join("input"), folder.join("output"));
        fs::write(&input, "input").unwrap();
        drop(Output::open(&path, &input).unwrap());
        assert!(!path.exists());
        Output::open(&path, &input).unwrap().write(b"longer").unwrap();
        drop(Output::open(&path, &input).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"longer");
        Output::open(&path, &input).unwrap().write(b"short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        fs::remove_dir_all(&folder).unwrap();
    }
}
