//! Devices: each is an H200.

use super::abi::{Out, Text};
use super::error::{Code, Outcome};
use super::state::{initialise, raw_state, state};

/// Memory of a device, bytes.
pub const TOTAL_MEMORY: u64 = 150_109_880_320;
/// Multiprocessors of a device.
pub const SM_COUNT: u32 = 132;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
const MULTIPROCESSOR_COUNT: u32 = 16;
/// The newest CUDA version that this driver speaks: 13.0, whose PTX is 9.0.
pub const DRIVER_VERSION: i32 = 13000;
/// Name of a device.
const NAME: &str = "NVIDIA H200 (emulated)";

/// Attributes of an H200 (`CUdevice_attribute`), as its driver reports them; those that are not here are 0.
const ATTRIBUTES: [(u32, i32); 69] = [
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, 2_147_483_647),
    (6, 65535),
    (7, 65535),
    (8, 49152),
    (9, 65536),
    (10, 32),
    (11, 2_147_483_647),
    (12, 65536),
    (13, 1_980_000),
    (14, 512),
    (15, 1),
    (MULTIPROCESSOR_COUNT, SM_COUNT as i32),
    (31, 1),
    (36, 3_201_000),
    (37, 6144),
    (38, 62_914_560),
    (39, 2048),
    (40, 3),
    (41, 1),
    (75, 9),
    (76, 0),
    (78, 1),
    (79, 1),
    (80, 1),
    (81, 233_472),
    (82, 65536),
    (83, 1),
    (85, 0),
    (86, 1),
    (87, 2),
    (88, 1),
    (89, 1),
    (90, 1),
    (91, 1),
    (92, 1),
    (93, 1),
    (94, 1),
    (95, 1),
    (97, 232_448),
    (98, 1),
    (99, 1),
    (100, 1),
    (101, 0),
    (102, 1),
    (103, 1),
    (106, 32),
    (107, 0),
    (108, 39_321_600),
    (109, 134_217_728),
    (110, 1),
    (111, 1024),
    (112, 1),
    (113, 1),
    (114, 1),
    (115, 1),
    (116, 1),
    (117, 1),
    (118, 1),
    (119, 9),
    (120, 1),
    (121, 1),
    (123, 1),
    (124, 1),
    (127, 1),
    (134, 0),
];

/// An attribute's value.
pub fn attribute(attribute: u32) -> Option<i32> {
    if attribute == 0 || attribute > 150 {
        return None;
    }
    Some(ATTRIBUTES.iter().find(|(number, _)| *number == attribute).map_or(0, |&(_, value)| value))
}

/// Checks a device.
pub fn check(device: i32) -> Outcome {
    let state = state()?;
    if (0..state.settings.devices).contains(&device) { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}

/// An identifier of a device.
fn uuid(device: i32) -> [u8; 16] {
    let mut id = *b"hopper-emulator0";
    id[15] = device as u8;
    id
}

api! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        initialise()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(DRIVER_VERSION)
    }

    fn cuGetErrorName(code: Code, text: Out<usize>) {
        let Some((name, _)) = code.texts() else {
            text.set(0)?;
            return Err(Code::INVALID_VALUE);
        };
        text.set(name.as_ptr() as usize)
    }

    fn cuGetErrorString(code: Code, text: Out<usize>) {
        let Some((_, description)) = code.texts() else {
            text.set(0)?;
            return Err(Code::INVALID_VALUE);
        };
        text.set(description.as_ptr() as usize)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(state()?.settings.devices)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        check(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<u8>, len: i32, device: i32) {
        check(device)?;
        if len <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut bytes = NAME.as_bytes().to_vec();
        bytes.truncate(len as usize - 1);
        bytes.push(0);
        name.set_all(&bytes)
    }

    fn cuDeviceGetUuid(id: Out<[u8; 16]>, device: i32) {
        check(device)?;
        id.set(uuid(device))
    }

    fn cuDeviceGetUuid_v2(id: Out<[u8; 16]>, device: i32) {
        check(device)?;
        id.set(uuid(device))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        check(device)?;
        bytes.set(raw_state().memory.usage().1 as usize)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, number: u32, device: i32) {
        check(device)?;
        let known = attribute(number).ok_or(Code::INVALID_VALUE)?;
        value.set(if number == MULTIPROCESSOR_COUNT { raw_state().settings.sm_count as i32 } else { known })
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        check(device)?;
        major.set(9)?;
        minor.set(0)
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, len: i32, device: i32) {
        check(device)?;
        let mut id = format!("0000:{:02x}:00.0", device + 1).into_bytes();
        id.push(0);
        if (len as usize) < id.len() {
            return Err(Code::INVALID_VALUE);
        }
        text.set_all(&id)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let text = text.get()?;
        let found = (0..state()?.settings.devices).find(|device| text == format!("0000:{:02x}:00.0", device + 1));
        device.set(found.ok_or(Code::INVALID_DEVICE)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        check(device)?;
        check(peer)?;
        can.set(i32::from(device != peer))
    }
}
