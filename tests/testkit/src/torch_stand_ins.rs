//! Builds stand-ins for PyTorch's libraries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{repository, temporary};

/// The directory of the stand-ins: libc10_cuda.so, which needs libc10.so beside it, and others.
pub fn libraries() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = temporary().join(format!("c10-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let compile = |compiler: &str, name: &str, sources: &[&str], flags: &[&str]| {
            let programs = repository().join("tests/programs");
            let built = Command::new(compiler)
                .args(["-O1", "-g", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN"])
                .arg(format!("-Wl,-soname,{name}"))
                .arg("-o")
                .arg(directory.join(name))
                .args(sources.iter().map(|name| programs.join(name)))
                .arg("-L")
                .arg(&directory)
                .args(flags)
                .arg("-lpthread")
                .output()
                .unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        };
        let build = |name: &str, sources: &[&str], flags: &[&str]| {
            let sources: Vec<String> = sources.iter().map(|name| format!("{name}.c")).collect();
            let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
            compile("gcc", name, &sources, &[&["-std=gnu11"], flags].concat());
        };
        build("libc10.so", &["libc10"], &[]);
        build("libc10_cuda.so", &["libc10_cuda"], &["-l:libc10.so"]);
        let with_streams = ["-l:libc10.so", "-DSTREAMS"];
        build("libc10_cuda-streams.so", &["libc10_cuda"], &with_streams);
        const OF_ALL: &str = "-DREQUESTS=\"_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm\"";
        const OF_CUDA: &str = "-DREQUESTS=\"_ZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig24roundup_power2_divisionsEm\"";
        build("libc10-requests.so", &["libc10"], &[OF_ALL, "-DDIVISIONS"]);
        build("libc10_cuda-requests.so", &["libc10_cuda"], &["-l:libc10-requests.so", OF_ALL]);
        let before_2_10 = ["-l:libc10.so", OF_CUDA, "-DDIVISIONS_HERE"];
        build("libc10_cuda-requests-2.9.so", &["libc10_cuda"], &before_2_10);
        // Another process has this libc10.so than the one above.
        let alone = directory.join("alone");
        std::fs::create_dir_all(&alone).unwrap();
        build("alone/libc10.so", &["libc10"], &["-Wl,-soname,libc10.so", OF_ALL, "-DDIVISIONS"]);
        build("alone/libdivisions.so", &["divisions"], &["-l:alone/libc10.so", OF_ALL]);
        // Its own calls are bound to it: none of them can be seen.
        let bound = [&before_2_10[..], &["-Wl,-Bsymbolic"]].concat();
        build("libc10_cuda-requests-bound.so", &["libc10_cuda"], &bound);
        // With the names that packaging tools give, and linked into one library.
        build("libc10-4711.so", &["libc10"], &[]);
        build("libc10_cuda-4711.so", &["libc10_cuda"], &["-l:libc10-4711.so"]);
        build("libtorch_static.so", &["libc10", "libc10_cuda"], &[]);
        // Plugins with the whole allocator inside, of the same length, whose functions lie elsewhere.
        let inside = ["-DDIVISIONS", OF_ALL];
        build("plugin-one.so", &["libc10", "libc10_cuda"], &inside);
        build("plugin-other.so", &["libc10_cuda", "libc10"], &inside);
        build("libslow.so", &["slow"], &[]);
        for (name, layout) in [
            ("libtorch_cpu.so", "-DUSUAL_LAYOUT"),
            ("libtorch_cpu-layout.so", "-DOTHER_LAYOUT"),
            ("libtorch_cpu-pointers.so", "-DOTHER_POINTERS"),
        ] {
            let flags = ["-std=c++17", layout, "-l:libc10_cuda.so"];
            compile("g++", name, &["libtorch_cpu.cpp"], &flags);
        }
        directory
    })
}
