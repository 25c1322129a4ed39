@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(0) @binding(2) var<storage, read_write> b2: array<f32>;
var<workgroup> l0: array<f32, 1024>;
var<private> zero: u32;
fn float_of(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn floordiv_i32(x: i32, y: i32) -> i32 {
  if (y == 0) { return 0; }
  if (y == -1) { return 0 - x; }
  let q = x / y;
  let r = x - q * y;
  return select(q, q - 1, r != 0 && ((r < 0) != (y < 0)));
}
fn rem_i32(x: i32, y: i32) -> i32 {
  if (y == 0 || y == -1) { return 0; }
  return x - (x / y) * y;
}
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  var l1: f32;
  zero = group.z;  // a grid has one layer
  let i_row = i32(group.x + group.y * 65535u);
  if (i_row < 4i) {
    let i_thread_1 = i32(local.x);
    if (i_thread_1 < 256i) {
      for (var i_item = 0i; i_item < 4i; i_item++) {
        l1 = float_of(0x80000000u);
        let v1 = i_item * 256i;
        let v2 = v1 + i_thread_1;
        let v3 = floordiv_i32(v2, 16i);
        let v4 = v3 * -512i;
        let v5 = rem_i32(i_row, 4i);
        let v6 = v5 * -32768i;
        let v7 = v4 + v6;
        let v8 = rem_i32(v2, 16i);
        let v9 = v8 * -1i;
        let v10 = v7 + v9;
        let v11 = v10 + 100015i;
        let v12 = floordiv_i32(v11, 16i);
        let v13 = min(32i, v12);
        for (var i_step = 0i; i_step < v13; i_step++) {
          let v14 = l1;
          let v15 = v3 * 512i;
          let v16 = v5 * 32768i;
          let v17 = v15 + v16;
          let v18 = v17 + v8;
          let v19 = i_step * 16i;
          let v20 = v18 + v19;
          let v21 = b0[v20];
          let v22 = exact(v14 + v21);
          l1 = v22;
        }
        let v23 = l1;
        l0[v2] = v23;
      }
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_2 = i32(local.x);
    if (i_thread_2 < 256i) {
      for (var i_item_1 = 0i; i_item_1 < 2i; i_item_1++) {
        let v24 = i_item_1 * 256i;
        let v25 = v24 + i_thread_2;
        let v26 = floordiv_i32(v25, 16i);
        let v27 = v26 * 32i;
        let v28 = rem_i32(v25, 16i);
        let v29 = v27 + v28;
        let v30 = l0[v29];
        let v31 = v29 + 16i;
        let v32 = l0[v31];
        let v33 = exact(v30 + v32);
        l0[v29] = v33;
      }
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_3 = i32(local.x);
    if (i_thread_3 < 256i) {
      let v34 = floordiv_i32(i_thread_3, 16i);
      let v35 = v34 * 64i;
      let v36 = rem_i32(i_thread_3, 16i);
      let v37 = v35 + v36;
      let v38 = l0[v37];
      let v39 = v37 + 32i;
      let v40 = l0[v39];
      let v41 = exact(v38 + v40);
      l0[v37] = v41;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_4 = i32(local.x);
    if (i_thread_4 < 128i) {
      let v42 = floordiv_i32(i_thread_4, 16i);
      let v43 = v42 * 128i;
      let v44 = rem_i32(i_thread_4, 16i);
      let v45 = v43 + v44;
      let v46 = l0[v45];
      let v47 = v45 + 64i;
      let v48 = l0[v47];
      let v49 = exact(v46 + v48);
      l0[v45] = v49;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_5 = i32(local.x);
    if (i_thread_5 < 64i) {
      let v50 = floordiv_i32(i_thread_5, 16i);
      let v51 = v50 * 256i;
      let v52 = rem_i32(i_thread_5, 16i);
      let v53 = v51 + v52;
      let v54 = l0[v53];
      let v55 = v53 + 128i;
      let v56 = l0[v55];
      let v57 = exact(v54 + v56);
      l0[v53] = v57;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_6 = i32(local.x);
    if (i_thread_6 < 32i) {
      let v58 = floordiv_i32(i_thread_6, 16i);
      let v59 = v58 * 512i;
      let v60 = rem_i32(i_thread_6, 16i);
      let v61 = v59 + v60;
      let v62 = l0[v61];
      let v63 = v61 + 256i;
      let v64 = l0[v63];
      let v65 = exact(v62 + v64);
      l0[v61] = v65;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_7 = i32(local.x);
    if (i_thread_7 < 16i) {
      let v66 = floordiv_i32(i_thread_7, 16i);
      let v67 = v66 * 1024i;
      let v68 = rem_i32(i_thread_7, 16i);
      let v69 = v67 + v68;
      let v70 = l0[v69];
      let v71 = v69 + 512i;
      let v72 = l0[v71];
      let v73 = exact(v70 + v72);
      l0[v69] = v73;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread = i32(local.x);
    if (i_thread < 16i) {
      let v74 = i_row * 16i;
      let v75 = v74 + i_thread;
      let v76 = l0[i_thread];
      b2[v75] = v76;
    }
  }
}
