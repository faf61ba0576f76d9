//! Arguments that cross the C border, as types whose methods check for null. The C caller makes them, and answers for what they point to.

use std::ffi::{CStr, c_char, c_void};

use super::error::{Code, Outcome};

/// A pointer through which a result is returned.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    pub fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and valid for writes as the driver's ABI asks of the caller.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result if the caller wants it.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// Reads what the caller has put there.
    pub fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0).get()
    }

    /// Writes consecutive elements.
    pub fn set_all(self, values: &[T]) -> Outcome
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and valid for that many elements as the driver's ABI asks of the caller.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }

    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The pointer, for work that is done later.
    pub fn address(self) -> usize {
        self.0 as usize
    }
}

/// A pointer to something that the caller passes in.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T>(*mut T);

impl<T: Copy> In<T> {
    /// The pointer to an address.
    pub fn at(address: usize) -> Self {
        Self(address as *mut T)
    }

    /// Reads it.
    pub fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and valid for reads as the driver's ABI asks of the caller.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads `count` consecutive elements.
    pub fn all(self, count: usize) -> Outcome<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and valid for `count` elements as the driver's ABI asks of the caller.
        Ok((0..count).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }

    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl<T> From<Out<T>> for In<T> {
    fn from(out: Out<T>) -> Self {
        In(out.0)
    }
}

/// A C string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Copies it.
    pub fn get(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and a C string as the driver's ABI asks of the caller.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Copies host memory.
pub fn read_host(address: usize, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    // SAFETY: the caller of the driver names host memory of that size.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, data.as_mut_ptr(), bytes) };
    data
}

/// Writes host memory.
pub fn write_host(address: usize, data: &[u8]) {
    // SAFETY: the caller of the driver names host memory of that size.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), address as *mut u8, data.len()) };
}

/// Calls a host function.
pub fn call_host(function: usize, data: usize) {
    if function == 0 {
        return;
    }
    // SAFETY: the caller of the driver passes a function of this type.
    let call = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(function) };
    // SAFETY: with the argument that its caller chose.
    unsafe { call(data as *mut c_void) };
}

/// Calls a stream callback: stream, status, data.
pub fn call_stream_callback(function: usize, stream: usize, data: usize) {
    // SAFETY: the caller of the driver passes a function of this type.
    let call = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void, u32, *mut c_void)>(function) };
    // SAFETY: with the arguments that its caller chose.
    unsafe { call(stream as *mut c_void, 0, data as *mut c_void) };
}

/// Text of a host image that ends with NUL, or the first bytes of a binary one.
pub fn read_image(address: usize) -> Vec<u8> {
    let magic = read_host(address, 4);
    if magic == *b"\x7fELF" || magic == [0x50, 0xed, 0x55, 0xba] {
        return magic;
    }
    // SAFETY: a PTX image ends with NUL, as the driver's ABI asks of the caller.
    unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes().to_vec()
}
