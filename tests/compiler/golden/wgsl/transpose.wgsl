@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
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
  if (i_block < 75i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = rem_i32(v2, 96i);
      let v4 = v3 * 200i;
      let v5 = floordiv_i32(v2, 96i);
      let v6 = v4 + v5;
      let v7 = b0[v6];
      let v8 = exact(v7 * 2.000000000e+00f);
      b1[v2] = v8;
    }
  }
}
