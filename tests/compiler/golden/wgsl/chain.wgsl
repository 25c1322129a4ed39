@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
var<private> zero: u32;
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
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
  if (i_block < 256i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = b0[v2];
      let v4 = b1[v2];
      let v5 = exact(v3 * v4);
      let v6 = b2[v2];
      let v7 = exact(v5 + v6);
      let v8 = abs(v7);
      let v9 = min_f32(f32(v8), f32(4.000000000e+01f));
      let v10 = exact(fma(v9, -2.885390043e+00f, 1.258303900e+07f));
      let v11 = bitcast<i32>(v10);
      let v12 = v11 << 23u;
      let v13 = bitcast<f32>(v12);
      let v14 = exact(v10 - 1.258303900e+07f);
      let v15 = exact(fma(v14, 3.465735912e-01f, v9));
      let v16 = exact(v15 * v15);
      let v17 = exact(fma(8.925765008e-02f, v15, -2.677303553e-01f));
      let v18 = exact(fma(v17, v15, 6.666604877e-01f));
      let v19 = exact(fma(v18, v15, -1.333323479e+00f));
      let v20 = exact(fma(v19, v15, 2.000000000e+00f));
      let v21 = exact(-2.000000000e+00f * v15);
      let v22 = exact(fma(v16, v20, v21));
      let v23 = -v22;
      let v24 = exact(1.000000000e+00f - v13);
      let v25 = exact(fma(v13, v23, v24));
      let v26 = exact(1.000000000e+00f + v13);
      let v27 = exact(fma(v13, v22, v26));
      let v28 = exact(v25 / v27);
      let v29 = bitcast<i32>(v28);
      let v30 = bitcast<i32>(v7);
      let v31 = v30 & (-2147483647 - 1);
      let v32 = v29 | v31;
      let v33 = bitcast<f32>(v32);
      b3[v2] = v33;
    }
  }
}
