use super::*;
use vramtrace_format::capspec;
use vramtrace_format::capspec::Limit;

const GIB: u64 = 1 << 30;

fn gpu(id: DeviceId, total_bytes: u64) -> Device {
    Device { id, uuid: [id.0; 16], name: String::new(), total_bytes, mig: false }
}

fn two_devices(id: DeviceId) -> Option<Device> {
    (id.0 < 2).then(|| gpu(id, 24 * GIB))
}

fn cap(text: &str) -> Cap {
    Cap::new(rules(text), two_devices)
}

fn rules(text: &str) -> CapRules {
    CapRules { spec: Some(capspec::parse(text).unwrap()), ..CapRules::default() }
}

#[test]
fn a_default_and_an_exception() {
    let cap = cap("8GiB,1=50%");
    assert_eq!(cap.limit(DeviceId(0)), Some(8 * GIB));
    assert_eq!(cap.limit(DeviceId(1)), Some(12 * GIB));
    assert_eq!(cap.limit(DeviceId::UNKNOWN), None);
}

#[test]
fn a_device_without_a_rule_has_no_cap_and_counts_all_the_same() {
    let cap = cap("1=1GiB");
    let mut promise = cap.reserve(DeviceId(0), Kind::Device, 100 * GIB).unwrap();
    promise.commit(100 * GIB as i64).unwrap();
    cap.went(DeviceId(0), Kind::Device, 1);
    cap.charge(DeviceId(0), 5);
    assert_eq!(cap.counted(DeviceId(0)), 100 * GIB + 4);
    let absurd = cap.reserve(DeviceId(0), Kind::Device, u64::MAX);
    assert!(absurd.is_ok());
    assert_eq!(cap.counted(DeviceId(0)), 100 * GIB + 4);
    assert!(cap.limited(DeviceId(0)).is_none() && cap.limited(DeviceId(1)).is_some());
}

#[test]
fn a_cap_that_only_warns_counts_on() {
    let warns = CapRules { mode: Mode::Warn, ..rules("1GiB") };
    let cap = Cap::new(warns, two_devices);
    assert!(cap.reserve(DeviceId(0), Kind::Device, 2 * GIB).is_err(), "it says so");
    let mut promise = cap.reserve_anyway(DeviceId(0), Kind::Device, 2 * GIB);
    promise.commit(3 * GIB as i64).unwrap();
    assert_eq!(cap.counted(DeviceId(0)), 3 * GIB);
    assert_eq!((cap.limit(DeviceId(0)), cap.enforced(DeviceId(0)).next()), (Some(GIB), None));
    drop(cap.reserve_anyway(DeviceId(0), Kind::Managed, 3 << 20));
    assert_eq!(cap.counted(DeviceId(0)), 3 * GIB);
}

#[test]
fn a_soft_limit_is_a_share_of_the_cap_or_of_the_device() {
    let soft = Some(Limit::Share(80_000_000));
    let cap = Cap::new(CapRules { soft, ..rules("0=10GiB") }, two_devices);
    let mut reported = Vec::new();
    for device in [0, 1] {
        let mut taken = cap.reserve(DeviceId(device), Kind::Device, 9 * GIB).unwrap();
        taken.commit(9 * GIB as i64).unwrap();
        cap.take_news(|device, news| reported.push((device.0, news)));
    }
    let crossing = Crossing { over: true, counted: 9 * GIB, limit: 8 * GIB };
    assert_eq!(reported, [(0, Some(crossing))]);
    cap.charge(DeviceId(1), 11 * GIB as i64);
    let mut devices = Vec::new();
    cap.take_news(|device, _| devices.push(device.0));
    assert_eq!(devices, [1]);
}

#[test]
fn what_was_charged_before_the_limit_was_known_counts() {
    fn later(id: DeviceId) -> Option<Device> {
        static READY: AtomicBool = AtomicBool::new(false);
        READY.swap(true, Relaxed).then(|| gpu(id, GIB))
    }
    let cap = Cap::new(rules("50%"), later);
    cap.charge(DeviceId(0), 10);
    assert_eq!(cap.limit(DeviceId(0)), None, "the driver does not know yet");
    assert_eq!(cap.limit(DeviceId(0)), Some(GIB / 2));
    assert_eq!(cap.counted(DeviceId(0)), 10);
}

#[test]
fn a_bad_cap_is_not_no_cap() {
    assert!(Cap::new(CapRules { bad: true, ..CapRules::default() }, two_devices).is_bad());
    let none = Cap::new(CapRules::default(), two_devices);
    assert!(!none.is_bad() && !none.is_set());
    assert!(none.reserve(DeviceId(0), Kind::Device, u64::MAX).is_ok());
}
