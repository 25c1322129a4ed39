@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<workgroup> l0: array<f32, 1056>;
var<private> zero: u32;
fn rem_i32(x: i32, y: i32) -> i32 {
  if (y == 0 || y == -1) { return 0; }
  return x - (x / y) * y;
}
fn floordiv_i32(x: i32, y: i32) -> i32 {
  if (y == 0) { return 0; }
  if (y == -1) { return 0 - x; }
  let q = x / y;
  let r = x - q * y;
  return select(q, q - 1, r != 0 && ((r < 0) != (y < 0)));
}
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  zero = group.z;  // a grid has one layer
  let i_block = i32(group.x + group.y * 65535u);
  if (i_block < 21i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      for (var i_item = 0i; i_item < 4i; i_item++) {
        let v1 = rem_i32(i_block, 3i);
        let v2 = v1 * 6400i;
        let v3 = i_item * 256i;
        let v4 = v3 + i_thread;
        let v5 = floordiv_i32(v4, 32i);
        let v6 = v5 * 200i;
        let v7 = v2 + v6;
        let v8 = floordiv_i32(i_block, 3i);
        let v9 = v8 * 32i;
        let v10 = rem_i32(v4, 32i);
        let v11 = v9 + v10;
        let v12 = min(v11, 199i);
        let v13 = v7 + v12;
        let v14 = b0[v13];
        let v15 = v5 * 33i;
        let v16 = v15 + v10;
        l0[v16] = v14;
      }
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_1 = i32(local.x);
    if (i_thread_1 < 256i) {
      for (var i_item_1 = 0i; i_item_1 < 4i; i_item_1++) {
        let v17 = floordiv_i32(i_block, 3i);
        let v18 = v17 * 32i;
        let v19 = i_item_1 * 256i;
        let v20 = v19 + i_thread_1;
        let v21 = floordiv_i32(v20, 32i);
        let v22 = v18 + v21;
        let v23 = v22 < 200i;
        if (v23) {
          let v24 = v17 * 3072i;
          let v25 = v21 * 96i;
          let v26 = v24 + v25;
          let v27 = rem_i32(i_block, 3i);
          let v28 = v27 * 32i;
          let v29 = v26 + v28;
          let v30 = rem_i32(v20, 32i);
          let v31 = v29 + v30;
          let v32 = v30 * 33i;
          let v33 = v32 + v21;
          let v34 = l0[v33];
          let v35 = exact(v34 * 2.000000000e+00f);
          b1[v31] = v35;
        }
      }
    }
  }
}
