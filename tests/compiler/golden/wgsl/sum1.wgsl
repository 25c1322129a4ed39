@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
var<workgroup> l1: array<f32, 64>;
var<private> zero: u32;
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
  var l0: f32;
  zero = group.z;  // a grid has one layer
  let i_row = i32(group.x + group.y * 65535u);
  if (i_row < 1i) {
    let i_thread = i32(local.x);
    if (i_thread < 64i) {
      let v1 = i_row * 64i;
      let v2 = v1 + i_thread;
      let v3 = b2[v2];
      l1[i_thread] = v3;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_1 = i32(local.x);
    if (i_thread_1 < 32i) {
      let v4 = floordiv_i32(i_thread_1, 16i);
      let v5 = v4 * 32i;
      let v6 = rem_i32(i_thread_1, 16i);
      let v7 = v5 + v6;
      let v8 = l1[v7];
      let v9 = v7 + 16i;
      let v10 = l1[v9];
      let v11 = exact(v8 + v10);
      l1[v7] = v11;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_2 = i32(local.x);
    if (i_thread_2 < 16i) {
      let v12 = floordiv_i32(i_thread_2, 16i);
      let v13 = v12 * 64i;
      let v14 = rem_i32(i_thread_2, 16i);
      let v15 = v13 + v14;
      let v16 = l1[v15];
      let v17 = v15 + 32i;
      let v18 = l1[v17];
      let v19 = exact(v16 + v18);
      l1[v15] = v19;
    }
    workgroupBarrier();
    storageBarrier();
    let v20 = l1[0i];
    let v21 = l1[8i];
    let v22 = exact(v20 + v21);
    let v23 = l1[4i];
    let v24 = l1[12i];
    let v25 = exact(v23 + v24);
    let v26 = exact(v22 + v25);
    let v27 = l1[2i];
    let v28 = l1[10i];
    let v29 = exact(v27 + v28);
    let v30 = l1[6i];
    let v31 = l1[14i];
    let v32 = exact(v30 + v31);
    let v33 = exact(v29 + v32);
    let v34 = exact(v26 + v33);
    let v35 = l1[1i];
    let v36 = l1[9i];
    let v37 = exact(v35 + v36);
    let v38 = l1[5i];
    let v39 = l1[13i];
    let v40 = exact(v38 + v39);
    let v41 = exact(v37 + v40);
    let v42 = l1[3i];
    let v43 = l1[11i];
    let v44 = exact(v42 + v43);
    let v45 = l1[7i];
    let v46 = l1[15i];
    let v47 = exact(v45 + v46);
    let v48 = exact(v44 + v47);
    let v49 = exact(v41 + v48);
    let v50 = exact(v34 + v49);
    l0 = v50;
    let i_thread_3 = i32(local.x);
    if (i_thread_3 < 1i) {
      let v51 = l0;
      b1[0i] = v51;
    }
  }
}
