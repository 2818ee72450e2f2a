//go:build tools

// Helm: named here so that `go mod tidy` keeps what it needs in go.sum.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
