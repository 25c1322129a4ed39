@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<private> zero: u32;
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
fn truth(x: bool) -> bool { return (u32(x) ^ zero) != 0u; }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}
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
      let v4 = exact(5.000000000e-01f * v3);
      let v5 = exact(v3 * 7.071067691e-01f);
      let v6 = abs(v5);
      let v7 = truth(v6 < 1.200000048e+00f);
      let v8 = exact(v5 * v5);
      let v9 = exact(fma(6.584640505e-05f, v8, -7.587143336e-04f));
      let v10 = exact(fma(v9, v8, 5.135360640e-03f));
      let v11 = exact(fma(v10, v8, -2.682326548e-02f));
      let v12 = exact(fma(v11, v8, 1.128279194e-01f));
      let v13 = exact(fma(v12, v8, -3.761255145e-01f));
      let v14 = exact(fma(v13, v8, 1.283791512e-01f));
      let v15 = exact(fma(v5, v14, v5));
      let v16 = min_f32(f32(v6), f32(3.920000076e+00f));
      let v17 = exact(v16 - 2.500000000e+00f);
      let v18 = exact(fma(-8.518722098e-06f, v17, 2.032593693e-05f));
      let v19 = exact(fma(v18, v17, 5.909728861e-05f));
      let v20 = exact(fma(v19, v17, -2.757875482e-04f));
      let v21 = exact(fma(v20, v17, 2.912239870e-04f));
      let v22 = exact(fma(v21, v17, 5.655187997e-04f));
      let v23 = exact(fma(v22, v17, -2.821750473e-03f));
      let v24 = exact(fma(v23, v17, 6.106487475e-03f));
      let v25 = exact(fma(v24, v17, -8.614136837e-03f));
      let v26 = exact(fma(v25, v17, 8.352375589e-03f));
      let v27 = exact(fma(v26, v17, -5.446788389e-03f));
      let v28 = exact(fma(v27, v17, 2.178142080e-03f));
      let v29 = exact(fma(v28, v17, 9.995930791e-01f));
      let v30 = bitcast<i32>(v29);
      let v31 = v30 & 2147483647i;
      let v32 = bitcast<i32>(v5);
      let v33 = v32 & (-2147483647 - 1);
      let v34 = v31 | v33;
      let v35 = bitcast<f32>(v34);
      let v36 = select(v35, v15, v7);
      let v37 = exact(1.000000000e+00f + v36);
      let v38 = exact(v4 * v37);
      b1[v2] = v38;
    }
  }
}
