@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<private> zero: u32;
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  zero = group.z;  // a grid has one layer
  let i_block = i32(group.x + group.y * 65535u);
  if (i_block < 128i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = b0[v2];
      let v4 = abs(v3);
      let v5 = min_f32(f32(v4), f32(5.420000076e+00f));
      let v6 = exact(fma(v5, -4.069634542e-06f, 6.983710773e-05f));
      let v7 = exact(v5 * v5);
      let v8 = exact(fma(v5, -3.676393535e-04f, -3.615922105e-05f));
      let v9 = exact(fma(v6, v7, v8));
      let v10 = exact(fma(v5, 4.505212419e-03f, 5.536370911e-03f));
      let v11 = exact(fma(v9, v7, v10));
      let v12 = exact(fma(v5, -5.969828740e-02f, -1.994700432e-01f));
      let v13 = exact(fma(v11, v7, v12));
      let v14 = exact(fma(v5, v13, 1.000000000e+00f));
      let v15 = exact(v14 * v14);
      let v16 = -v15;
      let v17 = exact(fma(v15, v16, 1.000000000e+00f));
      let v18 = bitcast<i32>(v17);
      let v19 = bitcast<i32>(v3);
      let v20 = v19 & (-2147483647 - 1);
      let v21 = v18 | v20;
      let v22 = bitcast<f32>(v21);
      let v23 = exact(fma(v22, 5.000000000e-01f, 5.000000000e-01f));
      let v24 = exact(v3 * v23);
      b1[v2] = v24;
    }
  }
}
