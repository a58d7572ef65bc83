//! Several processes over the simulated devices: shared memory figures, death, IPC, descriptors,
//! forked children, the same addresses in every run. The test program starts itself again as the
//! other processes, each in a role of its own.

use std::ffi::{CString, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use libtest_mimic::{Arguments, Trial};

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 526 * MIB + 832 * 1024;

/// The variable that makes this program another test's process.
const ROLE: &str = "SIM_TEST_ROLE";

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let trial = |(name, run): (&str, fn())| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.map(trial).into()).exit();
}

const TESTS: [(&str, fn()); 6] = [
    ("processes_share_the_device_and_ended_ones_release_it", || {
        let state = state("share");
        run_alone("watcher", std::slice::from_ref(&state));
        std::fs::remove_file(&state.1).unwrap();
    }),
    ("addresses_are_the_same_in_every_run", || {
        assert_eq!(run_alone("holder", &[]), run_alone("holder", &[]));
    }),
    ("memory_is_shared_by_handle", || drop(run_alone("importer", &[]))),
    ("memory_is_shared_by_descriptor", || drop(run_alone("descriptor_owner", &[]))),
    ("a_forked_child_has_no_driver", || drop(run_alone("forker", &[]))),
    ("visible_devices_are_honoured", || {
        // How many there are, and the last byte of the first one's UUID: its number.
        for (visible, seen) in [("0,1,2", "3 0"), ("2,0", "2 2"), ("1", "1 1")] {
            let devices = ("VRAMTRACE_SIM", "3x1GiB".to_owned());
            let visible = ("CUDA_VISIBLE_DEVICES", visible.to_owned());
            assert_eq!(run_alone("chooser", &[devices, visible]), seen);
        }
    }),
];

fn play(role: &str) {
    match role {
        "holder" => holder(),
        "watcher" => watcher(),
        "exporter" => exporter(),
        "importer" => importer(),
        "descriptor_opener" => descriptor_opener(),
        "descriptor_owner" => descriptor_owner(),
        "forker" => forker(),
        "chooser" => chooser(),
        _ => panic!("no role {role}"),
    }
}

fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    deps.parent().unwrap().join("libvramtrace_sim.so")
}

fn symbol(name: &str) -> *mut c_void {
    static LIBRARY: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let path = CString::new(library().to_str().unwrap()).unwrap();
        // SAFETY: the simulated driver, whose initialisers touch only what is its own.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{path:?}: build the library first");
        library as usize
    });
    let name = CString::new(name).unwrap();
    // SAFETY: a library that stays open, and a C string.
    let found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

macro_rules! cu {
    ($name:ident($($arg:expr => $type:ty),*)) => {{
        let call: unsafe extern "C" fn($($type),*) -> i32 =
            // SAFETY: the function of that name; each use states the types that the driver documents.
            unsafe { std::mem::transmute(symbol(stringify!($name))) };
        // SAFETY: each use passes places of its own that outlive the call, and handles that it was given.
        unsafe { call($($arg),*) }
    }};
}

macro_rules! ok {
    ($name:ident($($arg:expr => $type:ty),*)) => {
        assert_eq!(cu!($name($($arg => $type),*)), 0, stringify!($name))
    };
}

fn start() {
    ok!(cuInit(0 => u32));
    let mut context = std::ptr::null_mut();
    ok!(cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, 0 => i32));
    ok!(cuCtxSetCurrent(context => *mut c_void));
}

fn alloc(size: u64) -> u64 {
    let mut pointer = 0;
    ok!(cuMemAlloc_v2(&mut pointer => *mut u64, size as usize => usize));
    pointer
}

fn used() -> u64 {
    let (mut free, mut total) = (0usize, 0usize);
    ok!(cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
    (total - free) as u64
}

fn read(pointer: u64) -> [u8; 8] {
    let mut bytes = [0u8; 8];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr() => *mut u8, pointer => u64, 8 => usize));
    bytes
}

fn fill(pointer: u64, value: u8) {
    ok!(cuMemsetD8_v2(pointer => u64, value => u8, 8 => usize));
}

/// Another process of this program, which says a line and then waits for one.
struct Other {
    child: Child,
    stdin: Option<ChildStdin>,
    reply: String,
}

impl Other {
    fn run(role: &str, variables: &[(&str, String)]) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reply = lines
            .find_map(|line| line.unwrap().split_once("reply: ").map(|(_, reply)| reply.to_owned()))
            .expect("the other process says a line");
        // Whatever it says later must find a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Other { child, stdin, reply }
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn say_and_wait(line: &str) {
    println!("reply: {line}");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

fn state(name: &str) -> (&'static str, String) {
    let path = std::env::temp_dir().join(format!("sim-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    ("VRAMTRACE_SIM_STATE", path.to_str().unwrap().to_owned())
}

fn run_alone(role: &str, variables: &[(&str, String)]) -> String {
    let other = Other::run(role, variables);
    let reply = other.reply.clone();
    other.end();
    reply
}

fn holder() {
    start();
    let pointer = alloc(1 << 30);
    say_and_wait(&format!("{pointer:x}"));
}

fn watcher() {
    // Its own holder shares the state file, which the variable of this process names.
    let mut other = Other::run("holder", &[]);
    start();
    assert_eq!(used(), 2 * CONTEXT + (1 << 30));
    assert_eq!(nvml_processes().len(), 2);
    let listed = nvml_processes().iter().find(|(pid, _)| *pid == other.child.id()).copied();
    assert_eq!(listed, Some((other.child.id(), (518 << 20) + (1 << 30))));
    let mut pointer = 0;
    // It fits beside one context, but not beside two and another GiB.
    let size = (23u64 << 30) - 200 * MIB;
    assert_eq!(cu!(cuMemAlloc_v2(&mut pointer => *mut u64, size as usize => usize)), 2);
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    ok!(cuMemAlloc_v2(&mut pointer => *mut u64, size as usize => usize));
    assert_eq!(used(), CONTEXT + size);
    assert_eq!(nvml_processes().len(), 1);
    say_and_wait("done");
}

fn nvml_processes() -> Vec<(u32, u64)> {
    let mut device = std::ptr::null_mut();
    ok!(nvmlInit_v2());
    ok!(nvmlDeviceGetHandleByIndex_v2(0 => u32, &mut device => *mut *mut c_void));
    let (mut count, mut list) = (8u32, [[0u64; 3]; 8]);
    ok!(nvmlDeviceGetComputeRunningProcesses_v3(
        device => *mut c_void, &mut count => *mut u32, list.as_mut_ptr() => *mut [u64; 3]
    ));
    list[..count as usize].iter().map(|row| (row[0] as u32, row[1])).collect()
}

fn exporter() {
    start();
    alloc(512);
    let pointer = alloc(4096);
    fill(pointer, 0x11);
    let mut handle = [0u64; 8];
    ok!(cuIpcGetMemHandle(handle.as_mut_ptr() => *mut u64, pointer => u64));
    let text: Vec<String> = handle.iter().map(|word| format!("{word:x}")).collect();
    say_and_wait(&text.join(" "));
    // The importer wrote before it let us go.
    assert_eq!(read(pointer), [0x22; 8]);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u64; 8]);

fn importer() {
    let other = Other::run("exporter", &[]);
    start();
    let before = used();
    let mut words = other.reply.split(' ').map(|word| u64::from_str_radix(word, 16).unwrap());
    let handle = IpcHandle(std::array::from_fn(|_| words.next().unwrap()));
    let (mut pointer, mut again) = (0u64, 0u64);
    ok!(cuIpcOpenMemHandle_v2(&mut pointer => *mut u64, handle => IpcHandle, 1 => u32));
    ok!(cuIpcOpenMemHandle_v2(&mut again => *mut u64, handle => IpcHandle, 1 => u32));
    assert_eq!(pointer, again, "one mapping, two opens");
    assert_eq!(used(), before, "the owner is charged, not the opener");
    assert_eq!(read(pointer), [0x11; 8]);
    fill(pointer, 0x22);
    assert_eq!(cu!(cuMemFree_v2(pointer => u64)), 1, "not its to free");
    ok!(cuIpcCloseMemHandle(pointer => u64));
    ok!(cuIpcCloseMemHandle(pointer => u64));
    assert_eq!(cu!(cuIpcCloseMemHandle(pointer => u64)), 1);
    other.end();
    say_and_wait("done");
}

/// CUmemAllocationProp: pinned memory of device 0, exportable as a descriptor.
const PROP: [i32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];

fn map_whole(handle: u64, size: u64) -> u64 {
    let mut address = 0u64;
    let bytes = size as usize;
    ok!(cuMemAddressReserve(
        &mut address => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64
    ));
    ok!(cuMemMap(address => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64));
    let access = [1, 0, 3i32];
    ok!(cuMemSetAccess(
        address => u64, bytes => usize, access.as_ptr() => *const i32, 1 => usize
    ));
    address
}

fn descriptor_opener() {
    start();
    let path = std::env::var("SIM_TEST_FD").unwrap();
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let (before, mut handle) = (used(), 0u64);
    ok!(cuMemImportFromShareableHandle(
        &mut handle => *mut u64, file.as_raw_fd() as usize => usize, 1 => i32
    ));
    drop(file);
    let address = map_whole(handle, 2 * MIB);
    assert_eq!(used(), before);
    assert_eq!(read(address), [0x33; 8]);
    fill(address, 0x44);
    ok!(cuMemUnmap(address => u64, 2 << 20 => usize));
    ok!(cuMemRelease(handle => u64));
    say_and_wait("done");
}

fn descriptor_owner() {
    start();
    let (mut handle, mut fd) = (0u64, -1i32);
    ok!(cuMemCreate(
        &mut handle => *mut u64, 2 << 20 => usize, PROP.as_ptr() => *const i32, 0 => u64
    ));
    let address = map_whole(handle, 2 * MIB);
    fill(address, 0x33);
    ok!(cuMemExportToShareableHandle(
        &mut fd => *mut i32, handle => u64, 1 => i32, 0 => u64
    ));
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    assert_eq!(run_alone("descriptor_opener", &[("SIM_TEST_FD", path)]), "done");
    assert_eq!(read(address), [0x44; 8]);
    say_and_wait("done");
}

fn forker() {
    start();
    // SAFETY: this process has one thread; the child makes two calls and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut pointer = 0u64;
        let fine = cu!(cuMemAlloc_v2(&mut pointer => *mut u64, 64 => usize)) == 3
            && cu!(cuInit(0 => u32)) == 3;
        // SAFETY: ends the child.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: a child of this process, and room for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "a child has no driver");
    alloc(64);
    say_and_wait("done");
}

fn chooser() {
    ok!(cuInit(0 => u32));
    let (mut count, mut uuid) = (0, [0u8; 16]);
    ok!(cuDeviceGetCount(&mut count => *mut i32));
    ok!(cuDeviceGetUuid(uuid.as_mut_ptr() => *mut u8, 0 => i32));
    say_and_wait(&format!("{count} {}", uuid[15]));
}
