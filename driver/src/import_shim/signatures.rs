//! What cust_raw 0.11 declares, and so what `cust` and users of `cust::sys` can import: every function but
//! `cuGetErrorString`, which the shim answers itself. All return `CUresult`; arguments are reduced to how the ABI passes them (`Ptr`: any
//! pointer or handle; `u32`: also any enum; `Bytes64`: a 64-byte structure by value). A test compares every line with cust_raw's own.

/// Hands the list to the macro `$callback`.
macro_rules! for_each_import {
    ($callback:ident) => {
        $callback! {
            // Initialisation and devices.
            fn cuGetErrorName(a: u32, b: Ptr);
            fn cuInit(a: u32);
            fn cuDriverGetVersion(a: Ptr);
            fn cuDeviceGet(a: Ptr, b: i32);
            fn cuDeviceGetCount(a: Ptr);
            fn cuDeviceGetName(a: Ptr, b: i32, c: i32);
            fn cuDeviceGetUuid(a: Ptr, b: i32);
            fn cuDeviceGetUuid_v2(a: Ptr, b: i32);
            fn cuDeviceGetLuid(a: Ptr, b: Ptr, c: i32);
            fn cuDeviceTotalMem_v2(a: Ptr, b: i32);
            fn cuDeviceGetTexture1DLinearMaxWidth(a: Ptr, b: u32, c: u32, d: i32);
            fn cuDeviceGetAttribute(a: Ptr, b: u32, c: i32);
            fn cuDeviceGetNvSciSyncAttributes(a: Ptr, b: i32, c: i32);
            fn cuDeviceSetMemPool(a: i32, b: Ptr);
            fn cuDeviceGetMemPool(a: Ptr, b: i32);
            fn cuDeviceGetDefaultMemPool(a: Ptr, b: i32);
            fn cuFlushGPUDirectRDMAWrites(a: u32, b: u32);
            fn cuDeviceGetProperties(a: Ptr, b: i32);
            fn cuDeviceComputeCapability(a: Ptr, b: Ptr, c: i32);

            // Contexts.
            fn cuDevicePrimaryCtxRetain(a: Ptr, b: i32);
            fn cuDevicePrimaryCtxRelease_v2(a: i32);
            fn cuDevicePrimaryCtxSetFlags_v2(a: i32, b: u32);
            fn cuDevicePrimaryCtxGetState(a: i32, b: Ptr, c: Ptr);
            fn cuDevicePrimaryCtxReset_v2(a: i32);
            fn cuDeviceGetExecAffinitySupport(a: Ptr, b: u32, c: i32);
            fn cuCtxCreate_v2(a: Ptr, b: u32, c: i32);
            fn cuCtxCreate_v3(a: Ptr, b: Ptr, c: i32, d: u32, e: i32);
            fn cuCtxDestroy_v2(a: Ptr);
            fn cuCtxPushCurrent_v2(a: Ptr);
            fn cuCtxPopCurrent_v2(a: Ptr);
            fn cuCtxSetCurrent(a: Ptr);
            fn cuCtxGetCurrent(a: Ptr);
            fn cuCtxGetDevice(a: Ptr);
            fn cuCtxGetFlags(a: Ptr);
            fn cuCtxSynchronize();
            fn cuCtxSetLimit(a: u32, b: usize);
            fn cuCtxGetLimit(a: Ptr, b: u32);
            fn cuCtxGetCacheConfig(a: Ptr);
            fn cuCtxSetCacheConfig(a: u32);
            fn cuCtxGetSharedMemConfig(a: Ptr);
            fn cuCtxSetSharedMemConfig(a: u32);
            fn cuCtxGetApiVersion(a: Ptr, b: Ptr);
            fn cuCtxGetStreamPriorityRange(a: Ptr, b: Ptr);
            fn cuCtxResetPersistingL2Cache();
            fn cuCtxGetExecAffinity(a: Ptr, b: u32);
            fn cuCtxAttach(a: Ptr, b: u32);
            fn cuCtxDetach(a: Ptr);

            // Modules and the linker.
            fn cuModuleLoad(a: Ptr, b: Ptr);
            fn cuModuleLoadData(a: Ptr, b: Ptr);
            fn cuModuleLoadDataEx(a: Ptr, b: Ptr, c: u32, d: Ptr, e: Ptr);
            fn cuModuleLoadFatBinary(a: Ptr, b: Ptr);
            fn cuModuleUnload(a: Ptr);
            fn cuModuleGetFunction(a: Ptr, b: Ptr, c: Ptr);
            fn cuModuleGetGlobal_v2(a: Ptr, b: Ptr, c: Ptr, d: Ptr);
            fn cuModuleGetTexRef(a: Ptr, b: Ptr, c: Ptr);
            fn cuModuleGetSurfRef(a: Ptr, b: Ptr, c: Ptr);
            fn cuLinkCreate_v2(a: u32, b: Ptr, c: Ptr, d: Ptr);
            fn cuLinkAddData_v2(a: Ptr, b: u32, c: Ptr, d: usize, e: Ptr, f: u32, g: Ptr, h: Ptr);
            fn cuLinkAddFile_v2(a: Ptr, b: u32, c: Ptr, d: u32, e: Ptr, f: Ptr);
            fn cuLinkComplete(a: Ptr, b: Ptr, c: Ptr);
            fn cuLinkDestroy(a: Ptr);

            // Memory.
            fn cuMemGetInfo_v2(a: Ptr, b: Ptr);
            fn cuMemAlloc_v2(a: Ptr, b: usize);
            fn cuMemAllocPitch_v2(a: Ptr, b: Ptr, c: usize, d: usize, e: u32);
            fn cuMemFree_v2(a: u64);
            fn cuMemGetAddressRange_v2(a: Ptr, b: Ptr, c: u64);
            fn cuMemAllocHost_v2(a: Ptr, b: usize);
            fn cuMemFreeHost(a: Ptr);
            fn cuMemHostAlloc(a: Ptr, b: usize, c: u32);
            fn cuMemHostGetDevicePointer_v2(a: Ptr, b: Ptr, c: u32);
            fn cuMemHostGetFlags(a: Ptr, b: Ptr);
            fn cuMemAllocManaged(a: Ptr, b: usize, c: u32);
            fn cuDeviceGetByPCIBusId(a: Ptr, b: Ptr);
            fn cuDeviceGetPCIBusId(a: Ptr, b: i32, c: i32);
            fn cuIpcGetEventHandle(a: Ptr, b: Ptr);
            fn cuIpcOpenEventHandle(a: Ptr, b: Bytes64);
            fn cuIpcGetMemHandle(a: Ptr, b: u64);
            fn cuIpcOpenMemHandle_v2(a: Ptr, b: Bytes64, c: u32);
            fn cuIpcCloseMemHandle(a: u64);
            fn cuMemHostRegister_v2(a: Ptr, b: usize, c: u32);
            fn cuMemHostUnregister(a: Ptr);

            // Copies.
            fn cuMemcpy(a: u64, b: u64, c: usize);
            fn cuMemcpyPeer(a: u64, b: Ptr, c: u64, d: Ptr, e: usize);
            fn cuMemcpyHtoD_v2(a: u64, b: Ptr, c: usize);
            fn cuMemcpyDtoH_v2(a: Ptr, b: u64, c: usize);
            fn cuMemcpyDtoD_v2(a: u64, b: u64, c: usize);
            fn cuMemcpyDtoA_v2(a: Ptr, b: usize, c: u64, d: usize);
            fn cuMemcpyAtoD_v2(a: u64, b: Ptr, c: usize, d: usize);
            fn cuMemcpyHtoA_v2(a: Ptr, b: usize, c: Ptr, d: usize);
            fn cuMemcpyAtoH_v2(a: Ptr, b: Ptr, c: usize, d: usize);
            fn cuMemcpyAtoA_v2(a: Ptr, b: usize, c: Ptr, d: usize, e: usize);
            fn cuMemcpy2D_v2(a: Ptr);
            fn cuMemcpy2DUnaligned_v2(a: Ptr);
            fn cuMemcpy3D_v2(a: Ptr);
            fn cuMemcpy3DPeer(a: Ptr);
            fn cuMemcpyAsync(a: u64, b: u64, c: usize, d: Ptr);
            fn cuMemcpyPeerAsync(a: u64, b: Ptr, c: u64, d: Ptr, e: usize, f: Ptr);
            fn cuMemcpyHtoDAsync_v2(a: u64, b: Ptr, c: usize, d: Ptr);
            fn cuMemcpyDtoHAsync_v2(a: Ptr, b: u64, c: usize, d: Ptr);
            fn cuMemcpyDtoDAsync_v2(a: u64, b: u64, c: usize, d: Ptr);
            fn cuMemcpyHtoAAsync_v2(a: Ptr, b: usize, c: Ptr, d: usize, e: Ptr);
            fn cuMemcpyAtoHAsync_v2(a: Ptr, b: Ptr, c: usize, d: usize, e: Ptr);
            fn cuMemcpy2DAsync_v2(a: Ptr, b: Ptr);
            fn cuMemcpy3DAsync_v2(a: Ptr, b: Ptr);
            fn cuMemcpy3DPeerAsync(a: Ptr, b: Ptr);

            // Fills.
            fn cuMemsetD8_v2(a: u64, b: u8, c: usize);
            fn cuMemsetD16_v2(a: u64, b: u16, c: usize);
            fn cuMemsetD32_v2(a: u64, b: u32, c: usize);
            fn cuMemsetD2D8_v2(a: u64, b: usize, c: u8, d: usize, e: usize);
            fn cuMemsetD2D16_v2(a: u64, b: usize, c: u16, d: usize, e: usize);
            fn cuMemsetD2D32_v2(a: u64, b: usize, c: u32, d: usize, e: usize);
            fn cuMemsetD8Async(a: u64, b: u8, c: usize, d: Ptr);
            fn cuMemsetD16Async(a: u64, b: u16, c: usize, d: Ptr);
            fn cuMemsetD32Async(a: u64, b: u32, c: usize, d: Ptr);
            fn cuMemsetD2D8Async(a: u64, b: usize, c: u8, d: usize, e: usize, f: Ptr);
            fn cuMemsetD2D16Async(a: u64, b: usize, c: u16, d: usize, e: usize, f: Ptr);
            fn cuMemsetD2D32Async(a: u64, b: usize, c: u32, d: usize, e: usize, f: Ptr);

            // Arrays.
            fn cuArrayCreate_v2(a: Ptr, b: Ptr);
            fn cuArrayGetDescriptor_v2(a: Ptr, b: Ptr);
            fn cuArrayGetSparseProperties(a: Ptr, b: Ptr);
            fn cuMipmappedArrayGetSparseProperties(a: Ptr, b: Ptr);
            fn cuArrayGetPlane(a: Ptr, b: Ptr, c: u32);
            fn cuArrayDestroy(a: Ptr);
            fn cuArray3DCreate_v2(a: Ptr, b: Ptr);
            fn cuArray3DGetDescriptor_v2(a: Ptr, b: Ptr);
            fn cuMipmappedArrayCreate(a: Ptr, b: Ptr, c: u32);
            fn cuMipmappedArrayGetLevel(a: Ptr, b: Ptr, c: u32);
            fn cuMipmappedArrayDestroy(a: Ptr);

            // Virtual memory.
            fn cuMemAddressReserve(a: Ptr, b: usize, c: usize, d: u64, e: u64);
            fn cuMemAddressFree(a: u64, b: usize);
            fn cuMemCreate(a: Ptr, b: usize, c: Ptr, d: u64);
            fn cuMemRelease(a: u64);
            fn cuMemMap(a: u64, b: usize, c: usize, d: u64, e: u64);
            fn cuMemMapArrayAsync(a: Ptr, b: u32, c: Ptr);
            fn cuMemUnmap(a: u64, b: usize);
            fn cuMemSetAccess(a: u64, b: usize, c: Ptr, d: usize);
            fn cuMemGetAccess(a: Ptr, b: Ptr, c: u64);
            fn cuMemExportToShareableHandle(a: Ptr, b: u64, c: u32, d: u64);
            fn cuMemImportFromShareableHandle(a: Ptr, b: Ptr, c: u32);
            fn cuMemGetAllocationGranularity(a: Ptr, b: Ptr, c: u32);
            fn cuMemGetAllocationPropertiesFromHandle(a: Ptr, b: u64);
            fn cuMemRetainAllocationHandle(a: Ptr, b: Ptr);

            // Memory pools.
            fn cuMemFreeAsync(a: u64, b: Ptr);
            fn cuMemAllocAsync(a: Ptr, b: usize, c: Ptr);
            fn cuMemPoolTrimTo(a: Ptr, b: usize);
            fn cuMemPoolSetAttribute(a: Ptr, b: u32, c: Ptr);
            fn cuMemPoolGetAttribute(a: Ptr, b: u32, c: Ptr);
            fn cuMemPoolSetAccess(a: Ptr, b: Ptr, c: usize);
            fn cuMemPoolGetAccess(a: Ptr, b: Ptr, c: Ptr);
            fn cuMemPoolCreate(a: Ptr, b: Ptr);
            fn cuMemPoolDestroy(a: Ptr);
            fn cuMemAllocFromPoolAsync(a: Ptr, b: usize, c: Ptr, d: Ptr);
            fn cuMemPoolExportToShareableHandle(a: Ptr, b: Ptr, c: u32, d: u64);
            fn cuMemPoolImportFromShareableHandle(a: Ptr, b: Ptr, c: u32, d: u64);
            fn cuMemPoolExportPointer(a: Ptr, b: u64);
            fn cuMemPoolImportPointer(a: Ptr, b: Ptr, c: Ptr);

            // Pointers and managed memory.
            fn cuPointerGetAttribute(a: Ptr, b: u32, c: u64);
            fn cuMemPrefetchAsync(a: u64, b: usize, c: i32, d: Ptr);
            fn cuMemAdvise(a: u64, b: usize, c: u32, d: i32);
            fn cuMemRangeGetAttribute(a: Ptr, b: usize, c: u32, d: u64, e: usize);
            fn cuMemRangeGetAttributes(a: Ptr, b: Ptr, c: Ptr, d: usize, e: u64, f: usize);
            fn cuPointerSetAttribute(a: Ptr, b: u32, c: u64);
            fn cuPointerGetAttributes(a: u32, b: Ptr, c: Ptr, d: u64);

            // Streams.
            fn cuStreamCreate(a: Ptr, b: u32);
            fn cuStreamCreateWithPriority(a: Ptr, b: u32, c: i32);
            fn cuStreamGetPriority(a: Ptr, b: Ptr);
            fn cuStreamGetFlags(a: Ptr, b: Ptr);
            fn cuStreamGetCtx(a: Ptr, b: Ptr);
            fn cuStreamWaitEvent(a: Ptr, b: Ptr, c: u32);
            fn cuStreamAddCallback(a: Ptr, b: Ptr, c: Ptr, d: u32);
            fn cuStreamBeginCapture_v2(a: Ptr, b: u32);
            fn cuThreadExchangeStreamCaptureMode(a: Ptr);
            fn cuStreamEndCapture(a: Ptr, b: Ptr);
            fn cuStreamIsCapturing(a: Ptr, b: Ptr);
            fn cuStreamGetCaptureInfo(a: Ptr, b: Ptr, c: Ptr);
            fn cuStreamGetCaptureInfo_v2(a: Ptr, b: Ptr, c: Ptr, d: Ptr, e: Ptr, f: Ptr);
            fn cuStreamUpdateCaptureDependencies(a: Ptr, b: Ptr, c: usize, d: u32);
            fn cuStreamAttachMemAsync(a: Ptr, b: u64, c: usize, d: u32);
            fn cuStreamQuery(a: Ptr);
            fn cuStreamSynchronize(a: Ptr);
            fn cuStreamDestroy_v2(a: Ptr);
            fn cuStreamCopyAttributes(a: Ptr, b: Ptr);
            fn cuStreamGetAttribute(a: Ptr, b: u32, c: Ptr);
            fn cuStreamSetAttribute(a: Ptr, b: u32, c: Ptr);

            // Events.
            fn cuEventCreate(a: Ptr, b: u32);
            fn cuEventRecord(a: Ptr, b: Ptr);
            fn cuEventRecordWithFlags(a: Ptr, b: Ptr, c: u32);
            fn cuEventQuery(a: Ptr);
            fn cuEventSynchronize(a: Ptr);
            fn cuEventDestroy_v2(a: Ptr);
            fn cuEventElapsedTime(a: Ptr, b: Ptr, c: Ptr);

            // External memory and semaphores.
            fn cuImportExternalMemory(a: Ptr, b: Ptr);
            fn cuExternalMemoryGetMappedBuffer(a: Ptr, b: Ptr, c: Ptr);
            fn cuExternalMemoryGetMappedMipmappedArray(a: Ptr, b: Ptr, c: Ptr);
            fn cuDestroyExternalMemory(a: Ptr);
            fn cuImportExternalSemaphore(a: Ptr, b: Ptr);
            fn cuSignalExternalSemaphoresAsync(a: Ptr, b: Ptr, c: u32, d: Ptr);
            fn cuWaitExternalSemaphoresAsync(a: Ptr, b: Ptr, c: u32, d: Ptr);
            fn cuDestroyExternalSemaphore(a: Ptr);

            // Memory operations of streams.
            fn cuStreamWaitValue32(a: Ptr, b: u64, c: u32, d: u32);
            fn cuStreamWaitValue64(a: Ptr, b: u64, c: u64, d: u32);
            fn cuStreamWriteValue32(a: Ptr, b: u64, c: u32, d: u32);
            fn cuStreamWriteValue64(a: Ptr, b: u64, c: u64, d: u32);
            fn cuStreamBatchMemOp(a: Ptr, b: u32, c: Ptr, d: u32);

            // Kernels.
            fn cuFuncGetAttribute(a: Ptr, b: u32, c: Ptr);
            fn cuFuncSetAttribute(a: Ptr, b: u32, c: i32);
            fn cuFuncSetCacheConfig(a: Ptr, b: u32);
            fn cuFuncSetSharedMemConfig(a: Ptr, b: u32);
            fn cuFuncGetModule(a: Ptr, b: Ptr);
            fn cuLaunchKernel(a: Ptr, b: u32, c: u32, d: u32, e: u32, f: u32, g: u32, h: u32, i: Ptr, j: Ptr, k: Ptr);
            fn cuLaunchCooperativeKernel(a: Ptr, b: u32, c: u32, d: u32, e: u32, f: u32, g: u32, h: u32, i: Ptr, j: Ptr);
            fn cuLaunchCooperativeKernelMultiDevice(a: Ptr, b: u32, c: u32);
            fn cuLaunchHostFunc(a: Ptr, b: Ptr, c: Ptr);
            fn cuFuncSetBlockShape(a: Ptr, b: i32, c: i32, d: i32);
            fn cuFuncSetSharedSize(a: Ptr, b: u32);
            fn cuParamSetSize(a: Ptr, b: u32);
            fn cuParamSeti(a: Ptr, b: i32, c: u32);
            fn cuParamSetf(a: Ptr, b: i32, c: f32);
            fn cuParamSetv(a: Ptr, b: i32, c: Ptr, d: u32);
            fn cuLaunch(a: Ptr);
            fn cuLaunchGrid(a: Ptr, b: i32, c: i32);
            fn cuLaunchGridAsync(a: Ptr, b: i32, c: i32, d: Ptr);
            fn cuParamSetTexRef(a: Ptr, b: i32, c: Ptr);

            // Graphs.
            fn cuGraphCreate(a: Ptr, b: u32);
            fn cuGraphAddKernelNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphKernelNodeGetParams(a: Ptr, b: Ptr);
            fn cuGraphKernelNodeSetParams(a: Ptr, b: Ptr);
            fn cuGraphAddMemcpyNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr, f: Ptr);
            fn cuGraphMemcpyNodeGetParams(a: Ptr, b: Ptr);
            fn cuGraphMemcpyNodeSetParams(a: Ptr, b: Ptr);
            fn cuGraphAddMemsetNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr, f: Ptr);
            fn cuGraphMemsetNodeGetParams(a: Ptr, b: Ptr);
            fn cuGraphMemsetNodeSetParams(a: Ptr, b: Ptr);
            fn cuGraphAddHostNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphHostNodeGetParams(a: Ptr, b: Ptr);
            fn cuGraphHostNodeSetParams(a: Ptr, b: Ptr);
            fn cuGraphAddChildGraphNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphChildGraphNodeGetGraph(a: Ptr, b: Ptr);
            fn cuGraphAddEmptyNode(a: Ptr, b: Ptr, c: Ptr, d: usize);
            fn cuGraphAddEventRecordNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphEventRecordNodeGetEvent(a: Ptr, b: Ptr);
            fn cuGraphEventRecordNodeSetEvent(a: Ptr, b: Ptr);
            fn cuGraphAddEventWaitNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphEventWaitNodeGetEvent(a: Ptr, b: Ptr);
            fn cuGraphEventWaitNodeSetEvent(a: Ptr, b: Ptr);
            fn cuGraphAddExternalSemaphoresSignalNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphExternalSemaphoresSignalNodeGetParams(a: Ptr, b: Ptr);
            fn cuGraphExternalSemaphoresSignalNodeSetParams(a: Ptr, b: Ptr);
            fn cuGraphAddExternalSemaphoresWaitNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphExternalSemaphoresWaitNodeGetParams(a: Ptr, b: Ptr);
            fn cuGraphExternalSemaphoresWaitNodeSetParams(a: Ptr, b: Ptr);
            fn cuGraphAddMemAllocNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: Ptr);
            fn cuGraphMemAllocNodeGetParams(a: Ptr, b: Ptr);
            fn cuGraphAddMemFreeNode(a: Ptr, b: Ptr, c: Ptr, d: usize, e: u64);
            fn cuGraphMemFreeNodeGetParams(a: Ptr, b: Ptr);
            fn cuDeviceGraphMemTrim(a: i32);
            fn cuDeviceGetGraphMemAttribute(a: i32, b: u32, c: Ptr);
            fn cuDeviceSetGraphMemAttribute(a: i32, b: u32, c: Ptr);
            fn cuGraphClone(a: Ptr, b: Ptr);
            fn cuGraphNodeFindInClone(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphNodeGetType(a: Ptr, b: Ptr);
            fn cuGraphGetNodes(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphGetRootNodes(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphGetEdges(a: Ptr, b: Ptr, c: Ptr, d: Ptr);
            fn cuGraphNodeGetDependencies(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphNodeGetDependentNodes(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphAddDependencies(a: Ptr, b: Ptr, c: Ptr, d: usize);
            fn cuGraphRemoveDependencies(a: Ptr, b: Ptr, c: Ptr, d: usize);
            fn cuGraphDestroyNode(a: Ptr);
            fn cuGraphInstantiate_v2(a: Ptr, b: Ptr, c: Ptr, d: Ptr, e: usize);
            fn cuGraphInstantiateWithFlags(a: Ptr, b: Ptr, c: u64);
            fn cuGraphExecKernelNodeSetParams(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphExecMemcpyNodeSetParams(a: Ptr, b: Ptr, c: Ptr, d: Ptr);
            fn cuGraphExecMemsetNodeSetParams(a: Ptr, b: Ptr, c: Ptr, d: Ptr);
            fn cuGraphExecHostNodeSetParams(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphExecChildGraphNodeSetParams(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphExecEventRecordNodeSetEvent(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphExecEventWaitNodeSetEvent(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphExecExternalSemaphoresSignalNodeSetParams(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphExecExternalSemaphoresWaitNodeSetParams(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphUpload(a: Ptr, b: Ptr);
            fn cuGraphLaunch(a: Ptr, b: Ptr);
            fn cuGraphExecDestroy(a: Ptr);
            fn cuGraphDestroy(a: Ptr);
            fn cuGraphExecUpdate(a: Ptr, b: Ptr, c: Ptr, d: Ptr);
            fn cuGraphKernelNodeCopyAttributes(a: Ptr, b: Ptr);
            fn cuGraphKernelNodeGetAttribute(a: Ptr, b: u32, c: Ptr);
            fn cuGraphKernelNodeSetAttribute(a: Ptr, b: u32, c: Ptr);
            fn cuGraphDebugDotPrint(a: Ptr, b: Ptr, c: u32);
            fn cuUserObjectCreate(a: Ptr, b: Ptr, c: Ptr, d: u32, e: u32);
            fn cuUserObjectRetain(a: Ptr, b: u32);
            fn cuUserObjectRelease(a: Ptr, b: u32);
            fn cuGraphRetainUserObject(a: Ptr, b: Ptr, c: u32, d: u32);
            fn cuGraphReleaseUserObject(a: Ptr, b: Ptr, c: u32);

            // Occupancy.
            fn cuOccupancyMaxActiveBlocksPerMultiprocessor(a: Ptr, b: Ptr, c: i32, d: usize);
            fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(a: Ptr, b: Ptr, c: i32, d: usize, e: u32);
            fn cuOccupancyMaxPotentialBlockSize(a: Ptr, b: Ptr, c: Ptr, d: Ptr, e: usize, f: i32);
            fn cuOccupancyMaxPotentialBlockSizeWithFlags(a: Ptr, b: Ptr, c: Ptr, d: Ptr, e: usize, f: i32, g: u32);
            fn cuOccupancyAvailableDynamicSMemPerBlock(a: Ptr, b: Ptr, c: i32, d: i32);

            // Textures and surfaces.
            fn cuTexRefSetArray(a: Ptr, b: Ptr, c: u32);
            fn cuTexRefSetMipmappedArray(a: Ptr, b: Ptr, c: u32);
            fn cuTexRefSetAddress_v2(a: Ptr, b: Ptr, c: u64, d: usize);
            fn cuTexRefSetAddress2D_v3(a: Ptr, b: Ptr, c: u64, d: usize);
            fn cuTexRefSetFormat(a: Ptr, b: u32, c: i32);
            fn cuTexRefSetAddressMode(a: Ptr, b: i32, c: u32);
            fn cuTexRefSetFilterMode(a: Ptr, b: u32);
            fn cuTexRefSetMipmapFilterMode(a: Ptr, b: u32);
            fn cuTexRefSetMipmapLevelBias(a: Ptr, b: f32);
            fn cuTexRefSetMipmapLevelClamp(a: Ptr, b: f32, c: f32);
            fn cuTexRefSetMaxAnisotropy(a: Ptr, b: u32);
            fn cuTexRefSetBorderColor(a: Ptr, b: Ptr);
            fn cuTexRefSetFlags(a: Ptr, b: u32);
            fn cuTexRefGetAddress_v2(a: Ptr, b: Ptr);
            fn cuTexRefGetArray(a: Ptr, b: Ptr);
            fn cuTexRefGetMipmappedArray(a: Ptr, b: Ptr);
            fn cuTexRefGetAddressMode(a: Ptr, b: Ptr, c: i32);
            fn cuTexRefGetFilterMode(a: Ptr, b: Ptr);
            fn cuTexRefGetFormat(a: Ptr, b: Ptr, c: Ptr);
            fn cuTexRefGetMipmapFilterMode(a: Ptr, b: Ptr);
            fn cuTexRefGetMipmapLevelBias(a: Ptr, b: Ptr);
            fn cuTexRefGetMipmapLevelClamp(a: Ptr, b: Ptr, c: Ptr);
            fn cuTexRefGetMaxAnisotropy(a: Ptr, b: Ptr);
            fn cuTexRefGetBorderColor(a: Ptr, b: Ptr);
            fn cuTexRefGetFlags(a: Ptr, b: Ptr);
            fn cuTexRefCreate(a: Ptr);
            fn cuTexRefDestroy(a: Ptr);
            fn cuSurfRefSetArray(a: Ptr, b: Ptr, c: u32);
            fn cuSurfRefGetArray(a: Ptr, b: Ptr);
            fn cuTexObjectCreate(a: Ptr, b: Ptr, c: Ptr, d: Ptr);
            fn cuTexObjectDestroy(a: u64);
            fn cuTexObjectGetResourceDesc(a: Ptr, b: u64);
            fn cuTexObjectGetTextureDesc(a: Ptr, b: u64);
            fn cuTexObjectGetResourceViewDesc(a: Ptr, b: u64);
            fn cuSurfObjectCreate(a: Ptr, b: Ptr);
            fn cuSurfObjectDestroy(a: u64);
            fn cuSurfObjectGetResourceDesc(a: Ptr, b: u64);

            // Peer access.
            fn cuDeviceCanAccessPeer(a: Ptr, b: i32, c: i32);
            fn cuCtxEnablePeerAccess(a: Ptr, b: u32);
            fn cuCtxDisablePeerAccess(a: Ptr);
            fn cuDeviceGetP2PAttribute(a: Ptr, b: u32, c: i32, d: i32);

            // Graphics.
            fn cuGraphicsUnregisterResource(a: Ptr);
            fn cuGraphicsSubResourceGetMappedArray(a: Ptr, b: Ptr, c: u32, d: u32);
            fn cuGraphicsResourceGetMappedMipmappedArray(a: Ptr, b: Ptr);
            fn cuGraphicsResourceGetMappedPointer_v2(a: Ptr, b: Ptr, c: Ptr);
            fn cuGraphicsResourceSetMapFlags_v2(a: Ptr, b: u32);
            fn cuGraphicsMapResources(a: u32, b: Ptr, c: Ptr);
            fn cuGraphicsUnmapResources(a: u32, b: Ptr, c: Ptr);

            // Entry points and profiler.
            fn cuGetProcAddress(a: Ptr, b: Ptr, c: i32, d: u64);
            fn cuGetExportTable(a: Ptr, b: Ptr);
            fn cuProfilerInitialize(a: Ptr, b: Ptr, c: u32);
            fn cuProfilerStart();
            fn cuProfilerStop();
        }
    };
}
