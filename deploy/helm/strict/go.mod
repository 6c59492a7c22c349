module farpool.io/strict

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring v0.95.1
	sigs.k8s.io/yaml v1.6.0
)
