// Package older has no code: go.mod names the CSI specification that kubelets up to 1.36 are built on.
package older

import _ "github.com/container-storage-interface/spec/lib/go/csi"
