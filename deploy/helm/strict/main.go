// Decodes an object of the Prometheus operator or of cert-manager from standard input, and fails if a field is unknown.
package main

import (
	"fmt"
	"io"
	"os"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

func decode(text []byte) error {
	var about struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal(text, &about); err != nil {
		return err
	}
	kinds := map[string]any{
		"PodMonitor":  &monitoring.PodMonitor{},
		"Certificate": &certmanager.Certificate{},
		"Issuer":      &certmanager.Issuer{},
	}
	object, known := kinds[about.Kind]
	if !known {
		return fmt.Errorf("no type for the kind %q", about.Kind)
	}
	return yaml.UnmarshalStrict(text, object)
}

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = decode(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
