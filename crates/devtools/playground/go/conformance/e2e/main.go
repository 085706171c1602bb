// Kubernetes' own end-to-end tests, as a program. The only change: each namespace of a test is offloaded before the test sees it, so that
// no pod comes too early for Liqo.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	conformancetestdata "k8s.io/kubernetes/test/conformance/testdata"
	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	testfixtures "k8s.io/kubernetes/test/fixtures"

	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/common"
	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/network"
	_ "k8s.io/kubernetes/test/e2e/node"
	_ "k8s.io/kubernetes/test/e2e/storage"
	_ "k8s.io/kubernetes/test/utils/format"
)

// With it, pods wait until the NamespaceOffloading says where they run.
const waitForOffloading = "liqo.io/scheduling-enabled"

// A virtual node is preferred by the taint of the real ones: strategy Remote would add node affinity, which tests do not expect.
const offloading = `{"apiVersion":"offloading.liqo.io/v1alpha1","kind":"NamespaceOffloading","metadata":{"name":"offloading"%s},
"spec":{"podOffloadingStrategy":"LocalAndRemote"}}`

// The tests of sysctls wait for an event that a peer sends only where somebody asks for all events.
const allEvents = `,"annotations":{"liqo.io/remote-events":"all"}`

func createOffloadedNamespace(ctx context.Context, baseName string, client kubernetes.Interface, labels map[string]string) (*corev1.Namespace, error) {
	if labels == nil {
		labels = map[string]string{}
	}
	labels[waitForOffloading] = "true"
	namespace, err := framework.CreateTestingNS(ctx, baseName, client, labels)
	if err != nil {
		return namespace, err
	}
	body := fmt.Sprintf(offloading, "")
	if baseName == "sysctl" {
		body = fmt.Sprintf(offloading, allEvents)
	}
	path := fmt.Sprintf("/apis/offloading.liqo.io/v1alpha1/namespaces/%s/namespaceoffloadings", namespace.Name)
	rest := client.CoreV1().RESTClient()
	if err := rest.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error(); err != nil {
		return namespace, fmt.Errorf("cannot offload namespace %s: %w", namespace.Name, err)
	}
	return namespace, nil
}

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	testfiles.AddFileSource(testfixtures.GetTestFixturesFS())
	testfiles.AddFileSource(conformancetestdata.GetConformanceTestdataFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	framework.TestContext.CreateTestingNS = createOffloadedNamespace

	var t testing.T
	e2e.RunE2ETests(&t)
	if t.Failed() {
		os.Exit(1)
	}
}
