//! Examines the executable of a command: can the loader preload a library into it?

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, elf};
use vramtrace_reader::files;

/// Why a preloaded library sees nothing of an executable, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// No dynamic loader runs.
    Static,
    /// Linked with musl, whose loader cannot load a glibc library.
    Musl,
    /// The loader drops LD_PRELOAD when it gains rights.
    Setuid,
    /// 32-bit, or another machine.
    OtherMachine,
    /// Its sanitizer must be first in LD_PRELOAD.
    AddressSanitizer,
    /// It can open namespaces of the loader, in which nothing is preloaded.
    Dlmopen,
}

impl Escape {
    /// Whether the executable is not recorded at all.
    pub fn hides_executable(self) -> bool {
        !matches!(self, Escape::AddressSanitizer | Escape::Dlmopen)
    }

    pub fn explanation(self) -> &'static str {
        match self {
            Escape::Static => {
                "is a static executable (as of Go without cgo): no loader runs that could preload \
                 the recorder (dynamic programs that it starts are seen)"
            }
            Escape::Musl => {
                "is linked with musl, whose loader cannot load a library for glibc: it runs \
                 without the recorder, and so does what it starts"
            }
            Escape::Setuid => {
                "is setuid, setgid or has file capabilities: the loader ignores LD_PRELOAD for it"
            }
            Escape::OtherMachine => {
                "is not a 64-bit program of this machine: its loader prints `cannot be preloaded \
                 (wrong ELF class): ignored`, and it runs without the recorder and the cap"
            }
            Escape::AddressSanitizer => {
                "is built with AddressSanitizer, which must come first: set \
                 LD_PRELOAD=libasan.so (gcc -print-file-name=libasan.so) before this command"
            }
            Escape::Dlmopen => {
                "uses dlmopen: what it loads in another namespace of the loader is not seen"
            }
        }
    }
}

/// A command's executable.
#[derive(Clone, Debug)]
pub struct Executable {
    pub path: PathBuf,
    pub escapes: Vec<Escape>,
}

/// `None`: no such command, or a file that is neither ELF nor a script with `#!`.
pub fn examine(command: &OsStr) -> Option<Executable> {
    let path = find_in_path(command)?;
    let Some(interpreter) = interpreter_of_script(&path) else {
        return Some(Executable { escapes: escapes(&path)?, path });
    };
    let found = find_in_path(interpreter.as_os_str())?;
    // A script whose interpreter is a script again is rare; the kernel allows it.
    Some(Executable { escapes: escapes(&found)?, path: found })
}

/// Finds an executable as execvp does.
pub fn find_in_path(command: &OsStr) -> Option<PathBuf> {
    let executable = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command)).filter(executable);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|directory| directory.join(command)).find(executable)
}

/// `#!/usr/bin/env NAME` counts as NAME.
fn interpreter_of_script(path: &Path) -> Option<PathBuf> {
    let mut start = [0; 256];
    let length = files::open(path).ok()?.read(&mut start).ok()?;
    let line = start[..length].strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let path = |word: &[u8]| PathBuf::from(OsStr::from_bytes(word));
    let first = path(words.next()?);
    if first.file_name() == Some(OsStr::new("env")) {
        let is_program = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
        return words.find(is_program).map(path);
    }
    Some(first)
}

/// `None` where the file is no ELF.
fn escapes(path: &Path) -> Option<Vec<Escape>> {
    let cache = object::ReadCache::new(files::open(path).ok()?);
    let mut found = Vec::new();
    if gains_rights(path) {
        found.push(Escape::Setuid);
    }
    let Ok(file) = ElfFile64::<Endianness, _>::parse(&cache) else {
        let mut magic = [0; 4];
        files::open(path).ok()?.read_exact(&mut magic).ok()?;
        return (magic == *b"\x7fELF").then(|| vec![Escape::OtherMachine]);
    };
    let same_machine = match file.architecture() {
        object::Architecture::X86_64 => cfg!(target_arch = "x86_64"),
        object::Architecture::Aarch64 => cfg!(target_arch = "aarch64"),
        _ => false,
    };
    if !same_machine {
        return Some(vec![Escape::OtherMachine]);
    }
    let endian = file.endian();
    let interpreter = file.elf_program_headers().iter().find_map(|header| {
        header.interpreter(endian, file.data()).ok().flatten().map(<[u8]>::to_vec)
    });
    match interpreter {
        None => found.push(Escape::Static),
        Some(loader) if loader.windows(7).any(|part| part == b"ld-musl") => {
            found.push(Escape::Musl);
        }
        Some(_) => {
            let uses = |name: &str| file.dynamic_symbols().any(|symbol| symbol.name() == Ok(name));
            if uses("__asan_init") {
                found.push(Escape::AddressSanitizer);
            }
            if uses("dlmopen") {
                found.push(Escape::Dlmopen);
            }
        }
    }
    Some(found)
}

/// Why the loader cannot load this library: missing, not ELF, or for another machine. `None`: it can.
pub fn library_problem(path: &Path) -> Option<String> {
    let mut head = [0; 20];
    let read = files::open(path).and_then(|mut file| file.read_exact(&mut head));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Some("there is no such file".to_string());
        }
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            return Some(format!("it cannot be read: {error}"));
        }
        Ok(()) if head.starts_with(b"\x7fELF") => {}
        _ => return Some("it is no library (ELF)".to_string()),
    }
    let machine = match elf::DataEncoding(head[5]) {
        elf::ELFDATA2MSB => u16::from_be_bytes([head[18], head[19]]),
        _ => u16::from_le_bytes([head[18], head[19]]),
    };
    let own = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    (elf::Machine(machine) != own || elf::FileClass(head[4]) != elf::ELFCLASS64).then(|| {
        let arch = std::env::consts::ARCH;
        format!(
            "it is a library for another machine (ELF machine {machine}); this machine is {arch}"
        )
    })
}

fn gains_rights(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    // SAFETY: cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let setuid = meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid;
    let setgid = meta.mode() & libc::S_ISGID != 0 && meta.gid() != gid;
    setuid || setgid || uid != 0 && has_capabilities(path)
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    let name = c"security.capability".as_ptr();
    // SAFETY: both strings end in NUL; a null buffer of size 0 asks for the length.
    unsafe { libc::getxattr(path.as_ptr(), name, std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_dynamic_program_is_reached() {
        let shell = examine(OsStr::new("sh")).unwrap();
        assert!(shell.path.is_absolute() && shell.escapes.is_empty(), "{shell:?}");
    }

    #[test]
    fn a_script_counts_as_its_interpreter() {
        let place = tempfile::tempdir().unwrap();
        for line in ["#!/bin/sh", "#! /usr/bin/env sh", "#!/usr/bin/env -S A=1 sh -e"] {
            let script = place.path().join("script");
            fs::write(&script, format!("{line}\necho hello\n")).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            let found = examine(script.as_os_str()).unwrap();
            assert_eq!(found.path.file_name(), Some(OsStr::new("sh")), "{line}");
        }
    }

    #[test]
    fn a_library_that_the_loader_would_not_take_is_explained() {
        let place = tempfile::tempdir().unwrap();
        let library = place.path().join("libvramtrace.so");
        let problem = || library_problem(&library).unwrap_or_default();
        assert_eq!(problem(), "there is no such file");
        fs::write(&library, "text that is longer than a header").unwrap();
        assert_eq!(problem(), "it is no library (ELF)");
        let own = fs::read(std::env::current_exe().unwrap()).unwrap()[..64].to_vec();
        fs::write(&library, &own).unwrap();
        assert_eq!(problem(), "");
        let other = if cfg!(target_arch = "aarch64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
        let mut bytes = own;
        bytes[18..20].copy_from_slice(&other.0.to_le_bytes());
        fs::write(&library, &bytes).unwrap();
        assert!(problem().starts_with("it is a library for"), "{}", problem());
    }

    #[test]
    fn what_is_no_program_is_nothing() {
        assert!(examine(OsStr::new("no-such-command-here")).is_none());
        assert!(examine(OsStr::new("/etc/passwd")).is_none());
    }

    #[test]
    fn a_static_program_is_reported() {
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("static.c");
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        let program = place.path().join("static");
        let built = std::process::Command::new("gcc")
            .args(["-static", "-o"])
            .args([&program, &source])
            .status();
        if !built.is_ok_and(|status| status.success()) {
            testkit::skip("static programs: gcc links none");
            return;
        }
        assert_eq!(examine(program.as_os_str()).unwrap().escapes, [Escape::Static]);
    }
}
